"""What a recipe leaves open, and what a record means that lacks a key.

A new key is its field and nothing else where its default is what was done before there was a choice. Marked `LeftOpen`
it is one that is decided for a silent recipe; the mark says what older records mean, where that is not the default.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from deepnet.config import Section, section_in

S = TypeVar("S", bound=Section)


@dataclass(frozen=True)
class LeftOpen:
    """Marks a key that is decided for a recipe that says nothing of it; a run that goes on keeps what it was."""

    before: Any = None
    """What a record without the key means; None: its default."""


def is_silent(section: Section, key: str) -> bool:
    """Return whether a section leaves a key open: it does not say it, or says "auto"."""
    return key not in section.model_fields_set or getattr(section, key) == "auto"


def completed_by(section: S, earlier: S) -> S:
    """Return a section with the keys that it leaves open as an earlier one has them, sections inside it too."""
    found: dict[str, Any] = {}
    for key, field in type(section).model_fields.items():
        own, its = getattr(section, key), getattr(earlier, key)
        if isinstance(own, Section) and isinstance(its, type(own)):
            found[key] = completed_by(own, its)
        elif _mark(field) and is_silent(section, key):
            found[key] = its
    return section.model_copy(update=found)


def as_recorded(kind: type[Section], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section of a record with the keys that it lacks as they were meant, so that it says all of them.

    Sections inside it are completed where they are there.
    """
    fields = kind.model_fields
    lacking = {
        key: _meant(field)
        for key, field in fields.items()
        if not (key in recorded or field.is_required() or section_in(field.annotation))
    }
    there = {
        key: as_recorded(section, value) if (section := _section(kind, key, value)) else value
        for key, value in recorded.items()
    }
    return lacking | there


def as_before(
    kind: type[Section], settings: Mapping[str, Any], before: Mapping[str, Any]
) -> dict[str, Any]:
    """Return settings without the keys that earlier ones lack, where these mean what was meant without them."""
    meant, kept = as_recorded(kind, before), dict[str, Any]()
    for key, value in settings.items():
        if section := _section(kind, key, value):
            inside = before.get(key)
            kept[key] = as_before(section, value, inside if isinstance(inside, Mapping) else {})
        elif key in before or value != meant.get(key):
            kept[key] = value
    return kept


def _section(kind: type[Section], key: str, value: Any) -> type[Section] | None:
    """Return what section a value of a key is, None where it is none."""
    field = kind.model_fields.get(key)
    found: type[Section] | None = section_in(field.annotation) if field else None
    return found if isinstance(value, Mapping) else None


def _mark(field: FieldInfo) -> LeftOpen | None:
    return next((one for one in field.metadata if isinstance(one, LeftOpen)), None)


def _meant(field: FieldInfo) -> Any:
    """Return what a record without a field means by that, as JSON has it."""
    mark = _mark(field)
    if mark and mark.before is not None:
        return mark.before
    return to_jsonable_python(field.get_default(call_default_factory=True))
