"""The readings of probes.jsonl by place and layer: matrices of one row per layer and one column per reading."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deepnet.report.cells import Values
from deepnet.report.rounding import real, spread

_NONE: Values = np.zeros(0, dtype=np.float32)
_TOGETHER = {
    "gradient_norm": ("all weights, root of the sum of squares", False),
    "update_ratio": ("all weights, root mean square", True),
}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One line of probes.jsonl."""

    step: int
    probes: dict[str, dict[str, Values]]
    """Probe -> place -> one value per layer, infinite where null or not finite."""


def reading_of(record: dict[str, Any]) -> Reading:
    """Return a line's lists as arrays, a fraction of their size; what is no list of numbers by place is left out."""
    probes = {
        probe: {
            str(place): _array(values)
            for place, values in places.items()
            if isinstance(values, list)
        }
        for probe, places in record.items()
        if isinstance(places, dict)
    }
    return Reading(step=record["step"], probes=probes)


def in_order(readings: Iterable[Reading]) -> list[Reading]:
    """Return readings by step; of two of the same step, as a roll-back leaves them, the later one."""
    latest = {reading.step: reading for reading in readings}
    return [latest[step] for step in sorted(latest)]


def chosen_columns(steps: Sequence[int], events: Sequence[int], limit: int) -> list[int]:
    """Return at most `limit` positions in `steps`: those on both sides of an event, the others evenly spaced."""
    if len(steps) <= limit:
        return list(range(len(steps)))
    after = np.searchsorted(steps, events)
    beside = {int(place) for place in (*after, *(after - 1)) if 0 <= place < len(steps)}
    near = [sorted(beside)[place] for place in spread(len(beside), limit // 2)]
    return sorted({*near, *spread(len(steps), limit - len(near))})


def places_of(readings: Iterable[Reading], probe: str) -> list[str]:
    """Return the places at which a probe was read, in the order in which they first stand in the file."""
    return list(dict.fromkeys(p for reading in readings for p in reading.probes.get(probe, ())))


def matrix_of(readings: Sequence[Reading], probe: str, place: str) -> Values:
    """Return [layers, readings] of one probe at one place.

    NaN where a reading lacks the layer, and all along a layer that never has a number: it has no such site. Infinite
    where a value is not finite.
    """
    columns = [reading.probes.get(probe, {}).get(place, _NONE) for reading in readings]
    matrix = np.full((max(map(len, columns), default=0), len(columns)), np.nan)
    for number, column in enumerate(columns):
        matrix[: len(column), number] = column
    matrix[~np.isfinite(matrix).any(axis=1)] = np.nan
    return matrix


def together(probe: str, matrices: Sequence[Values]) -> tuple[str, Values] | None:
    """Return what the roles of a stack come to together, and what that is called; None where it would mean nothing."""
    if probe not in _TOGETHER or len(matrices) < 2:
        return None
    label, mean = _TOGETHER[probe]
    layers = max(map(len, matrices))
    padded = [np.pad(m, ((0, layers - len(m)), (0, 0)), constant_values=np.nan) for m in matrices]
    squares = np.square(np.stack(padded))
    count = (~np.isnan(squares)).sum(axis=0)
    total = np.where(count, np.nansum(squares, axis=0), np.nan)
    return label, np.sqrt(total / np.maximum(count, 1) if mean else total)


def _array(values: list[Any]) -> Values:
    numbers = np.array([real(value) for value in values], dtype=np.float32)
    return np.where(np.isfinite(numbers), numbers, np.float32(np.inf))
