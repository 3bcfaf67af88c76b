"""What a scheme's file says of it: the docstring of its module, and those of its options, which Python forgets."""

import ast
import inspect
import sys
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from deepnet.schemes.base import ResidualScheme
from deepnet.schemes.catalogue import class_summary

FACTS = ("source", "cost", "differs")
"""The words that begin, with a capital, what follows the equation in the docstring of a scheme's module."""


def read_docstring(kind: type[ResidualScheme]) -> dict[str, str]:
    """Return description, equation, source, cost and differs as the file of a scheme has them.

    A file that is written otherwise, as one of your own may be, has the short ones of the class, and "" for the rest.
    """
    parts = (inspect.getdoc(sys.modules[kind.__module__]) or "").split("\n\n")
    facts = _facts(parts[-1])
    if len(parts) != 3 or not facts:
        facts = {"source": kind.source}
        parts = [class_summary(kind), kind.equation]
    return {
        "description": " ".join(parts[0].split()),
        "equation": inspect.cleandoc(f"\n{parts[1]}"),
        **dict.fromkeys(FACTS, ""),
        **facts,
    }


def list_options(kind: type[ResidualScheme]) -> list[dict[str, Any]]:
    """Return name, choices, default and meaning of every option; choices is None where there are too many to list."""
    hints, meanings = get_type_hints(kind), _field_docstrings(kind)
    return [
        {
            "name": one.name,
            "choices": _choices(hints[one.name]),
            "default": one.default,
            "meaning": " ".join(meanings.get(one.name, "").split()),
        }
        for one in fields(kind)
    ]


def _choices(hint: Any) -> list[Any] | None:
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if NoneType in get_args(hint):
        return _choices(next(one for one in get_args(hint) if one is not NoneType))
    return [False, True] if hint is bool else None


def _facts(about: str) -> dict[str, str]:
    """Return what follows "Source:", "Cost:" and "Differs:" in a text; nothing where it begins with none of them."""
    found: dict[str, str] = {}
    last = ""
    for line in about.splitlines():
        word, colon, rest = line.partition(": ")
        if colon and word.istitle() and word.lower() in FACTS:
            last = word.lower()
            found[last] = rest
        elif last:
            found[last] += f" {line.strip()}"
    return found


def _field_docstrings(kind: type) -> dict[str, str]:
    """Return the string under each field of a class and of those it inherits from."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if is_dataclass(one):
            found |= _strings_under_fields(one)
    return found


def _strings_under_fields(kind: type) -> dict[str, str]:
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: ast.literal_eval(after.value)
        for field, after in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
    }
