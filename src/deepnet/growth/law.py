"""The law of depth, L(d) = A ln d + B, fitted to what models of several depths came to.

Least squares, with intervals from a parametric bootstrap of studentised errors: draws of normal noise at the same
depths, each divided by the spread that it shows itself. Three residuals cannot be resampled: their 27 draws give
intervals of 1.7 standard errors, where 12.7 are due.

Source of the law: Wang et al., DeepNet, arXiv 2203.00555, on multilingual translation; of the intervals: Efron and
Tibshirani, An Introduction to the Bootstrap (1993), section 12.5.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from deepnet.errors import ConfigError

FEWEST_DEPTHS = 3
"""With fewer, any curve goes through the points."""
_DRAWS, _SEED, _COVERED = 100_000, 1, 0.95
_ROUNDING = 64 * float(np.finfo(float).eps)
"""Noise that numbers have by themselves, relative to the largest."""

Array = NDArray[np.float64]


class Point(NamedTuple):
    """What one run of a depth came to."""

    depth: int
    """Layers of all stacks."""
    value: float


@dataclass(frozen=True)
class Estimate:
    """A number and its interval of 95%; infinitely wide where no point is left over to tell the noise from."""

    value: float
    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Return whether a value lies in the interval."""
        return self.low <= value <= self.high

    def to_dict(self) -> dict[str, float | None]:
        """Return everything for JSON, None for what is infinite."""
        ends = {"low": self.low, "high": self.high}
        return {
            "value": self.value,
            **{k: v if math.isfinite(v) else None for k, v in ends.items()},
        }


@dataclass(frozen=True, kw_only=True)
class Law:
    """A fitted law; the logarithm is the natural one."""

    points: tuple[Point, ...]
    slope: Estimate
    """A: what e times the depth brings."""
    intercept: Estimate
    """B: what one layer would come to."""
    at: dict[int, Estimate]
    """What a further run of some depth would come to, with the interval that it would lie in."""
    curvature: Estimate | None
    """C of A ln d + B + C (ln d)^2; None where there are too few points to tell."""

    def value(self, depth: float) -> float:
        """Return A ln d + B."""
        return self.slope.value * math.log(depth) + self.intercept.value

    @property
    def per_doubling(self) -> float:
        """Return what twice the depth brings."""
        return self.slope.value * math.log(2)

    @property
    def residuals(self) -> tuple[float, ...]:
        """Return by how much each point lies above the law."""
        return tuple(point.value - self.value(point.depth) for point in self.points)

    @property
    def objections(self) -> tuple[str, ...]:
        """Return why the data do not carry a law; nothing where they do."""
        found = []
        if (depths := len({point.depth for point in self.points})) < FEWEST_DEPTHS:
            found.append(
                f"there are {depths} depths, and any curve goes through those; train at a third"
            )
        elif self.slope.contains(0.0):
            found.append("the interval of A contains 0; train deeper, or with more seeds")
        if self.curvature and not self.curvature.contains(0.0):
            bends = "up" if self.curvature.value > 0 else "down"
            found.append(f"the points bend {bends}: the interval of C (ln d)^2 does not contain 0")
        return tuple(found)


def fit_law(points: Sequence[Point], *, at: Sequence[int] = ()) -> Law:
    """Fit the law to points, several at a depth allowed, and tell what runs of the depths `at` would come to.

    Raises ConfigError where all points have one depth, or a depth or value is none.
    """
    _check(points, at)
    x = np.log([point.depth for point in points])
    y = np.array([point.value for point in points], dtype=float)
    line = _Fit(np.stack([x, np.ones_like(x)], axis=1), y)
    new = {depth: np.array([math.log(depth), 1.0]) for depth in at}
    return Law(
        points=tuple(points),
        slope=line.estimate(np.array([1.0, 0.0])),
        intercept=line.estimate(np.array([0.0, 1.0])),
        at={depth: line.estimate(row, of_run=True) for depth, row in new.items()},
        curvature=_curvature(x, y),
    )


def _check(points: Sequence[Point], at: Sequence[int]) -> None:
    for depth in (*(point.depth for point in points), *at):
        if depth < 1:
            raise ConfigError(f"a depth is {depth}; expected at least 1 layer")
    for point in points:
        if not math.isfinite(point.value):
            raise ConfigError(
                f"the value at depth {point.depth} is {point.value}; leave that run out"
            )
    depths = {point.depth for point in points}
    if len(depths) < 2:
        there = f"all have depth {depths.pop()}" if depths else "there is none"
        raise ConfigError(f"a law of depth needs points of several depths, and {there}")


def _curvature(x: Array, y: Array) -> Estimate | None:
    """Return the coefficient of x^2, None where a parabola leaves no point over."""
    if len(np.unique(x)) < FEWEST_DEPTHS or len(x) <= FEWEST_DEPTHS:
        return None
    centred = x - x.mean()  # the coefficient is the same, and rounding smaller
    design = np.stack([centred**2, centred, np.ones_like(x)], axis=1)
    return _Fit(design, y).estimate(np.array([1.0, 0.0, 0.0]))


class _Fit:
    """Least squares of y [n] on a design [n, p], and how far off it may be."""

    def __init__(self, design: Array, y: Array) -> None:
        self._inverse = np.linalg.pinv(design)
        self._coefficients = self._inverse @ y
        self._rest = np.eye(len(y)) - design @ self._inverse
        self._freedom = len(y) - design.shape[1]
        if not self._freedom:
            return
        self._spread = max(float(self._spreads(y)), _ROUNDING * float(np.abs(y).max()))
        draw = np.random.default_rng(_SEED)
        noise = draw.standard_normal((_DRAWS, len(y) + 1))
        self._noise, self._further = noise[:, :-1], noise[:, -1]
        self._drawn_spreads = self._spreads(self._noise)

    def estimate(self, row: Array, *, of_run: bool = False) -> Estimate:
        """Return row @ coefficients; `of_run` is for the interval that a further point there lies in."""
        value = float(row @ self._coefficients)
        if not self._freedom:
            return Estimate(value, -math.inf, math.inf)
        errors = self._noise @ (row @ self._inverse) - (self._further if of_run else 0.0)
        studentised = np.abs(errors) / self._drawn_spreads
        half = self._spread * float(np.quantile(studentised, _COVERED))
        return Estimate(value, value - half, value + half)

    def _spreads(self, y: Array) -> Array:
        """Return the standard deviation of the noise that y [..., n] shows, [...]."""
        spreads: Array = np.sqrt(((y @ self._rest) ** 2).sum(-1) / self._freedom)
        return spreads
