"""Typed sections, TOML recipes and `section.key=value` overrides, with errors that name the key.

Each section is a `Section` defined beside its owner; a recipe only nests them. Precedence: default of the field,
then the recipe's TOML, then the overrides of the command line.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from deepnet.errors import ConfigError, suggest

T = TypeVar("T")


class Section(BaseModel):
    """A frozen, keyword-only group of settings that refuses unknown keys; the docstring under a field documents it."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True
    )


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file; raises ConfigError when it is missing, not UTF-8 or not TOML."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the recipe {path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from error


def override(data: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """Return `data` with every `section.key=value` applied; the value is read as TOML, else as a string."""
    result = _copy(data)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(
                f"'{assignment}' is not an override; write section.key=value, such as training.seed=2"
            )
        *path, last = key.strip().split(".")
        table = result
        for name in path:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise ConfigError(f"'{key}' cannot be set: '{name}' is a value, not a section")
        table[last] = _value(text.strip())
    return result


def override_section(
    name: str, data: Mapping[str, Any], assignments: Iterable[str]
) -> dict[str, Any]:
    """Return the section `name`, which is `data`, with every override applied; raises ConfigError for another one."""
    sections = override({name: data}, assignments)
    if others := sorted(sections.keys() - {name}):
        raise ConfigError(f"'{others[0]}' cannot be set here; only {name}.key=value can")
    section: dict[str, Any] = sections[name]
    return section


def build(kind: type[T], data: Mapping[str, Any], *, where: str = "") -> T:
    """Validate `data` as a `kind` (a Section or a dataclass); `where` names the section in errors.

    Raises ConfigError with one line per wrong key: its value, what was expected, and the nearest known name.
    """
    _refuse_unknown_fields(kind, data, where)
    try:
        return TypeAdapter(kind).validate_python(dict(data))
    except ValidationError as error:
        lines = [_describe(kind, problem, where) for problem in error.errors()]
        raise ConfigError("\n".join(lines)) from None


def _refuse_unknown_fields(kind: type, data: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError for keys that a plain dataclass lacks, which pydantic would ignore."""
    if is_dataclass(kind):
        known = [field.name for field in fields(kind) if field.init]
        unknown = [
            _unknown([where, key] if where else [key], known) for key in data if key not in known
        ]
        if unknown:
            raise ConfigError("\n".join(unknown))


def _unknown(location: list[str], known: list[str]) -> str:
    section = ".".join(location[:-1]) or "the recipe"
    hint = (
        suggest(location[-1], known) or f"; {section} has {', '.join(sorted(known)) or 'no keys'}"
    )
    return f"unknown key '{'.'.join(location)}'{hint}"


def _copy(data: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _copy(v) if isinstance(v, Mapping) else v for k, v in data.items()}


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _describe(kind: type, problem: Any, where: str) -> str:
    location = [str(part) for part in problem["loc"]]
    key = ".".join([where, *location] if where else location)
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        full = [where, *location] if where else location
        return _unknown(full, _fields(kind, location[:-1]))
    if problem["type"] in ("missing", "missing_argument"):
        return f"'{key}' is missing and has no default"
    message: str = problem["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if not key:
        return message
    if problem["type"] == "value_error" and isinstance(problem["input"], Mapping):
        return f"section '{key}': {message}"  # the message names the keys that do not go together
    return f"'{key}' is {problem['input']!r}: {message}"


def _fields(kind: Any, path: list[str]) -> list[str]:
    """Return the names of the fields of the section that `path` leads to from `kind`."""
    for name in path:
        known = kind.model_fields if _is_section(kind) else {}
        kind = section_in(known[name].annotation) if name in known else None
    return list(kind.model_fields) if _is_section(kind) else []


def section_in(annotation: Any) -> Any:
    """Return the section that an annotation is, or may be beside None."""
    return next((one for one in (annotation, *get_args(annotation)) if _is_section(one)), None)


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
