"""Recipes and environments of runs side by side: what differs first, everything folded away behind it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Row:
    """One key, and its value in each run as text; None where a run does not have it."""

    key: str
    values: list[str | None]

    @property
    def differs(self) -> bool:
        """Whether the runs do not all have the same value."""
        return len(set(self.values)) > 1


def table_of(sections: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return every key of nested settings, as "section.key", in the order in which they first stand."""
    flat = [_flat(settings) for settings in sections]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    return [Row(key=key, values=[settings.get(key) for settings in flat]) for key in keys]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            found[f"{prefix}{key}"] = text or '""'
    return found
