"""Numbers as the page holds them: few digits, and None where there is none."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def real(value: Any) -> float:
    """Return a number of a file as a float; NaN for null, text and anything else that is no number."""
    return (
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    )


def short(value: float, *, digits: int = 6) -> float | None:
    """Return a number rounded to so many significant digits, None where it is not finite."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def spread(positions: int, limit: int) -> list[int]:
    """Return at most `limit` of so many positions, evenly spaced, the first and the last among them."""
    if positions <= limit:
        return list(range(positions))
    return sorted({round(float(place)) for place in np.linspace(0, positions - 1, limit)})


def thinned(values: Sequence[float], limit: int) -> list[int]:
    """Return the positions of about `limit` values such that every stretch keeps its lowest and its highest.

    A stretch with a gap keeps the first value of it that is not finite. The first and the last are kept.
    """
    if len(values) <= limit:
        return list(range(len(values)))
    everything = np.asarray(values, dtype=float)
    kept = {0, len(values) - 1}
    for part in np.array_split(np.arange(len(values)), max(1, limit // 3)):
        finite = np.isfinite(everything[part])
        if finite.any():
            inside = part[finite]
            kept |= {
                int(inside[everything[inside].argmin()]),
                int(inside[everything[inside].argmax()]),
            }
        if not finite.all():
            kept.add(int(part[~finite][0]))
    return sorted(kept)
