"""What may change between the sessions of one run."""

from collections.abc import Collection, Mapping
from typing import Any

from deepnet.errors import ConfigError

CHANGEABLE = frozenset(
    f"training.{key}"
    for key in (
        "max_steps",
        "max_epochs",
        "max_minutes",
        "recompute",
        "validate_every",
        "save_every",
        "keep_last",
        "patience",
        "average_last",
        "log_every",
    )
)
"""The keys that change when a run ends, checks, saves or reports, but not what an update computes."""


def check_resumable(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Compare the resolved settings of a saved run with those it is to go on with.

    Raises ConfigError that names each key which may not change, with both values.
    """
    changed = list_changes(old, new, ignoring=CHANGEABLE)
    if changed:
        raise ConfigError(
            "a resumed run cannot change what it computes: "
            + "; ".join(changed)
            + f". Set it back, or start a new run from the saved model.{_schedule_hint(old, new)} What may change: "
            + ", ".join(sorted(CHANGEABLE))
        )


def _schedule_hint(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return what to do where a longer run would bend the schedule, which ends with the run unless told otherwise."""
    key = "schedule.decay_steps"
    before, after = _flat(old).get(key), _flat(new).get(key)
    if not before or before == after:
        return ""
    return (
        f" A schedule without decay_steps ends at training.max_steps: set {key}={before} besides training.max_steps to "
        "keep its curve; the learning rate then stays at schedule.min_lr from there on."
    )


def list_changes(
    old: Mapping[str, Any], new: Mapping[str, Any], *, ignoring: Collection[str] = ()
) -> list[str]:
    """Return a phrase for each key of nested settings that differs, with both values."""
    before, after = _flat(old), _flat(new)
    return [
        f"'{key}' was {before.get(key, 'not set')!r} and is now {after.get(key, 'not set')!r}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and key not in ignoring
    ]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return {"section.key": value}; tuples become lists, as JSON has them."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat
