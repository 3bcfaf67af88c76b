"""The cells of a heat map as few bytes: 12 bits each on a scale that the page gets with them, deflated, in base64.

Level 0 is "no reading", level 1 "zero" on a logarithmic scale, levels 2 to 4095 go evenly from `low` to `high`. Over
four powers of ten a value is off by 0.11% at most. The low bytes of all levels come before the high ones, which deflate
then makes small; a cell of pure noise takes two bytes of the page, one of a real run less.
"""

import base64
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.floating]

_FIRST, _LAST = 2, 4095
_WIDE = 30.0
"""Largest over smallest value from which colours follow the logarithm."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Which values the levels stand for: of the logarithm to base 10 where `log`."""

    low: float
    high: float
    log: bool


def scale_of(matrices: Iterable[Values]) -> Scale:
    """Return the scale that holds all finite values of some matrices."""
    values = np.concatenate([matrix[np.isfinite(matrix)] for matrix in matrices] or [np.zeros(0)])
    positive = values[values > 0]
    log = bool(positive.size and values.min() >= 0 and positive.max() > _WIDE * positive.min())
    shown = np.log10(positive) if log else values
    if not shown.size:
        return Scale(low=0.0, high=1.0, log=False)
    return Scale(low=float(shown.min()), high=float(shown.max()), log=log)


def packed(matrix: Values, scale: Scale) -> str:
    """Return the levels of a matrix, row by row, as text."""
    missing = ~np.isfinite(matrix)
    shown = np.where(missing, scale.low, matrix)
    zero = ~missing & (shown <= 0) if scale.log else np.zeros_like(missing)
    if scale.log:
        shown = np.log10(np.where(missing | zero, 1.0, shown))
    width = (scale.high - scale.low) or 1.0
    levels = _FIRST + np.rint((shown - scale.low) / width * (_LAST - _FIRST))
    levels = np.where(missing, 0, np.where(zero, 1, np.clip(levels, _FIRST, _LAST)))
    planes = levels.astype("<u2").view(np.uint8).reshape(-1, 2).T
    return base64.b64encode(zlib.compress(planes.tobytes(), 9)).decode()
