"""What may change between the sessions of one run."""

from collections.abc import Collection, Mapping
from typing import Any

from deepnet.config import Section
from deepnet.errors import ConfigError
from deepnet.left_open import as_before
from deepnet.training.config import (
    OptimizerConfig,
    PrecisionName,
    ScheduleConfig,
    TrainingConfig,
)
from deepnet.training.optimization.schedules import Annealing

CHANGEABLE = frozenset(
    f"training.{key}"
    for key in (
        "max_steps",
        "max_epochs",
        "max_minutes",
        "engine",
        "offload",
        "recompute",
        "recompute_segment",
        "step_in_backward",
        "compile",
        "validate_every",
        "save_every",
        "keep_last",
        "patience",
        "average_last",
        "log_every",
    )
)
"""The keys that change when a run ends, checks, saves or reports, or how an update is computed, but not what.

The limits do change it where the learning rate falls towards them.
"""
_LIMITS = frozenset({"training.max_steps", "training.max_epochs", "training.max_minutes"})
_TOWARDS = "annealing.towards"
MOVING_AVERAGE = "moving_average"
"""The section of a checkpoint's settings that says whether the average warms up."""
_PRECISION = "training.precision"


class _Sections(Section):
    """The sections of the loop, as a checkpoint's settings have them beside those of its caller."""

    training: TrainingConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig


def kept_annealing(
    annealing: Annealing, schedule: ScheduleConfig, saved: Mapping[str, Any]
) -> Annealing:
    """Return what a resumed run falls towards besides decay_steps: nothing, where its saved settings have nothing.

    So it was in earlier versions with max_steps and another limit: the curve ended at max_steps.
    """
    falls_by_steps = schedule.decay_steps and _TOWARDS not in _flat(saved)
    return Annealing() if falls_by_steps else annealing


def kept_warmup(saved: Mapping[str, Any]) -> bool:
    """Return whether a resumed run's moving average warms up: in earlier versions it did not."""
    return MOVING_AVERAGE in saved


def kept_precision(name: PrecisionName, saved: Mapping[str, Any]) -> PrecisionName:
    """Return the precision to go on in where settings say "auto": the one that was found when the run began.

    Earlier versions saved "auto" itself, and found it anew.
    """
    return saved.get("training", {}).get("precision", name) if name == "auto" else name


def check_resumable(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Compare the resolved settings of a saved run with those it is to go on with.

    Keys of the loop's sections that came later count where they change something. Raises ConfigError that names each
    key which may not change, with both values.
    """
    new = as_before(_Sections, new, old)
    falls = _TOWARDS in _flat(old) or _TOWARDS in _flat(new)
    changeable = CHANGEABLE - _LIMITS if falls else CHANGEABLE
    unknown = {_PRECISION} if _flat(old).get(_PRECISION) == "auto" else set()
    # what it falls towards follows from other keys, and is named only where none of them has changed
    changed = list_changes(old, new, ignoring=changeable | unknown | {_TOWARDS}) or list_changes(
        old, new, ignoring=changeable | unknown
    )
    if changed:
        raise ConfigError(
            "a resumed run cannot change what it computes: "
            + "; ".join(changed)
            + f". Set it back, or start a new run from the saved model.{_schedule_hint(old, new)} What may change: "
            + ", ".join(sorted(changeable))
        )


def _schedule_hint(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return what to do where a longer run would bend the schedule, which ends with the run unless told otherwise."""
    if _TOWARDS in _flat(old):
        return (
            " A schedule without decay_steps ends with the run: leave training.max_steps, training.max_epochs and "
            "training.max_minutes as they were."
        )
    key = "schedule.decay_steps"
    before, after = _flat(old).get(key), _flat(new).get(key)
    if not before or before == after:
        return ""
    return (
        f" A schedule without decay_steps ends with the run: set {key}={before} besides training.max_steps to "
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
