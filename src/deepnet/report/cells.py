"""The cells of a heat map as few bytes: 12 bits each on a scale that the page gets with them, deflated, in base64.

Level 0 is "no reading", level 1 "zero" on a logarithmic scale, level 2 "not finite", levels 3 to 4095 go evenly from
`low` to `high`. Over four powers of ten a value is off by 0.11% at most. In a matrix, a missing value is NaN and one
that is not finite is infinite. The low bytes of all levels come before the high ones, which deflate then makes small; a
cell of pure noise takes two bytes of the page, one of a real run less.
"""

import base64
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.floating]

_NONE, _ZERO, _NOT_FINITE, _FIRST, _LAST = 0, 1, 2, 3, 4095
_WIDE = 30.0
"""Largest over smallest value from which colours follow the logarithm."""
_FENCE = 3.0
"""Colours end so many interquartile ranges beyond the quartiles, where values go further."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Which values the levels stand for: of the logarithm to base 10 where `log`."""

    low: float
    high: float
    log: bool
    darkest: float
    """What the colours start at: values below have the first colour."""
    brightest: float
    """What the colours end at: values above have the last colour."""


def scale_of(matrices: Iterable[Values]) -> Scale:
    """Return the scale that holds all finite values of some matrices."""
    values = np.concatenate([matrix[np.isfinite(matrix)] for matrix in matrices] or [np.zeros(0)])
    positive = values[values > 0]
    log = bool(positive.size and values.min() >= 0 and positive.max() > _WIDE * positive.min())
    shown = np.log10(positive) if log else values
    if not shown.size:
        return Scale(low=0.0, high=1.0, log=False, darkest=0.0, brightest=1.0)
    low, high = float(shown.min()), float(shown.max())
    darkest, brightest = _robust_range(shown)
    return Scale(low=low, high=high, log=log, darkest=darkest, brightest=brightest)


def _robust_range(values: Values) -> tuple[float, float]:
    """Return where colours end: at Tukey's far fences, but of a twentieth of the values on either side at most.

    Where that leaves nothing between the ends, all values are in it. Source: Tukey, Exploratory Data Analysis, 1977.
    """
    first, quarter, three_quarters, last = np.quantile(values, (0.05, 0.25, 0.75, 0.95))
    reach = _FENCE * (three_quarters - quarter)
    low = max(values.min(), min(first, quarter - reach))
    high = min(values.max(), max(last, three_quarters + reach))
    return (float(low), float(high)) if low < high else (float(values.min()), float(values.max()))


def packed(matrix: Values, scale: Scale) -> str:
    """Return the levels of a matrix, row by row, as text."""
    special = [np.isnan(matrix), np.isinf(matrix), np.logical_and(scale.log, matrix <= 0)]
    shown = np.where(np.any(special, axis=0), 1.0, matrix)
    if scale.log:
        shown = np.log10(shown)
    width = (scale.high - scale.low) or 1.0
    levels = _FIRST + np.rint((shown - scale.low) / width * (_LAST - _FIRST))
    levels = np.select(special, [_NONE, _NOT_FINITE, _ZERO], np.clip(levels, _FIRST, _LAST))
    planes = levels.astype("<u2").view(np.uint8).reshape(-1, 2).T
    return base64.b64encode(zlib.compress(planes.tobytes(), 9)).decode()
