"""How sizes go with the depth of a model, as a power of it, and whether what was tuned at one depth fits another."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from deepnet.doctor.sizes import CHANGE, GRADIENT, STREAM
from deepnet.training.guard.config import GuardConfig

LIMIT = 0.25
"""The largest exponent, of either sign, that passes for none.

Half of 1/2, by which a sum of independent terms grows, the least that adding layers up gives; over depths 6 to 100 it
is the factor of 2 by which `deepnet reproduce deepnet-figure5` judges an update.
"""
EVENNESS = "first over last"
PLACES = ("first", "middle", "last", "median", EVENNESS)
"""What is kept of a stack: sizes of three layers, the median over all of them, and a ratio of two."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One size over the depths."""

    quantity: str
    of: str
    """One of PLACES."""
    update: int
    sizes: Mapping[int, float | None]
    """By layers of a stack; None where the update was not made."""

    @property
    def exponent(self) -> float | None:
        """Return that of depth by which the size goes; None where a size is missing, zero or not finite."""
        if not all(size and math.isfinite(size) for size in self.sizes.values()):
            return None
        values = [size for size in self.sizes.values() if size]
        return float(np.polyfit(np.log(list(self.sizes)), np.log(values), 1)[0])

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON has of it, to five digits."""
        return {
            "quantity": self.quantity,
            "of": self.of,
            "update": self.update,
            "sizes": {str(layers): _rounded(size) for layers, size in self.sizes.items()},
            "exponent": _rounded(self.exponent),
        }


@dataclass(frozen=True, kw_only=True)
class DepthCheck:
    """The sizes of one recipe's proxy at several depths."""

    lines: Sequence[Line]
    depths: Sequence[int]
    """Layers of each stack, the shallowest first."""
    updates: Sequence[int]
    """After which the sizes were read."""
    trial: Mapping[str, Any]
    """What was trained."""

    def medians(self, update: int) -> dict[str, Line]:
        """Return the line over all layers of each quantity, after an update."""
        found = (line for line in self.lines if (line.of, line.update) == ("median", update))
        return {line.quantity: line for line in found}

    def exponent(self, quantity: str, of: str) -> float | None:
        """Return the median of its exponents over the updates; None where one of them has none."""
        found = [one.exponent for one in self.lines if (one.quantity, one.of) == (quantity, of)]
        known = [exponent for exponent in found if exponent is not None]
        return median(known) if len(known) == len(found) else None

    @property
    def lost(self) -> list[int]:
        """Return the depths at which not every update was finite."""
        sizes = self.medians(self.updates[-1])[CHANGE].sizes
        return [layers for layers, size in sizes.items() if size is None]

    @property
    def replaced(self) -> list[int]:
        """Return the depths at which one update replaced the output, which no farther update can be told from."""
        limit = GuardConfig().largest_step_update
        changes = [self.medians(update)[CHANGE].sizes for update in self.updates]
        return [n for n in self.depths if any((sizes[n] or 0.0) >= limit for sizes in changes)]

    @property
    def rate_carries_over(self) -> bool:
        """Return whether the first update changes the output of all models alike, and none ever replaces it.

        A change that is large grows no further, so that later ones hide how it goes with depth.
        """
        return not self.lost and not self.replaced and _is_level(self._first_change)

    @property
    def coefficients_carry_over(self) -> bool:
        """Return whether at all depths the stream is of one size, and gradients reach first and last layer alike.

        These are what no rate can mend; the common size of gradients one can.
        """
        return not self.lost and not self._uneven()

    def says(self) -> str:
        """Return in words whether rate and coefficients carry over."""
        if self.lost:
            depths = ", ".join(map(str, self.lost))
            return (
                f"at {depths} layers not all {self.updates[-1]} updates were finite: neither the rate nor the "
                f"coefficients carry over from {self.depths[0]} layers to {self.depths[-1]}"
            )
        return f"{self._of_rate()}; {self._of_coefficients()}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            "rate_carries_over": self.rate_carries_over,
            "coefficients_carry_over": self.coefficients_carry_over,
            "limit": LIMIT,
            "says": self.says(),
            "depths": list(self.depths),
            "updates": list(self.updates),
            "lines": [line.to_dict() for line in self.lines],
            "trial": dict(self.trial),
        }

    @property
    def _first_change(self) -> float | None:
        return self.medians(self.updates[0])[CHANGE].exponent

    def _of_rate(self) -> str:
        exponent, shallow, deep = self._first_change, self.depths[0], self.depths[-1]
        if self.replaced:
            depths = ", ".join(map(str, self.replaced))
            return f"one update replaces the output at {depths} layers: the rate is too high there"
        if exponent is None:
            return f"one update changes nothing at some depth: nothing is known of the rate at {deep} layers"
        start = f"the {CHANGE} {_goes(exponent)}: a rate tuned at {shallow} layers"
        if _is_level(exponent):
            return f"{start} carries over to {deep}"
        times = (deep / shallow) ** abs(exponent)
        return f"{start} is {times:.1f} times too {'high' if exponent > 0 else 'low'} at {deep}"

    def _of_coefficients(self) -> str:
        uneven, deep = self._uneven(), self.depths[-1]
        if not uneven:
            return (
                "the stream, and the gradient of first over last layer, stay within "
                f"depth^{LIMIT:g}: the coefficients carry over to {deep}"
            )
        parts = ", ".join(f"the {what} {_goes(exponent)}" for what, exponent in uneven.items())
        return f"{parts}: the coefficients do not carry over to {deep}"

    def _uneven(self) -> dict[str, float | None]:
        """Return the exponents of what the coefficients are judged by and do not keep level."""
        found: dict[str, float | None] = {}
        for quantity in self.medians(self.updates[-1]):
            if quantity.startswith(STREAM):
                found[quantity] = self.exponent(quantity, "median")
            elif quantity.startswith(GRADIENT):
                found[f"{quantity}, {EVENNESS} layer,"] = self.exponent(quantity, EVENNESS)
        return {what: exponent for what, exponent in found.items() if not _is_level(exponent)}


def lines_of(
    readings: Mapping[int, Sequence[Mapping[str, Any]]], *, updates: Sequence[int]
) -> list[Line]:
    """Return a line per quantity, place and update, from what `Sizes` read at each depth."""
    by_update = {layers: {row["step"]: row for row in rows} for layers, rows in readings.items()}
    quantities = [key for rows in readings.values() for row in rows for key in row if key != "step"]
    return [
        Line(
            quantity=quantity,
            of=place,
            update=update,
            sizes={
                layers: _size(found.get(update, {}).get(quantity), place)
                for layers, found in by_update.items()
            },
        )
        for quantity in dict.fromkeys(quantities)
        for place in (PLACES if quantity != CHANGE else ("median",))
        for update in updates
    ]


def _size(row: Sequence[float] | None, place: str) -> float | None:
    if not row:
        return None
    first, last = row[0], row[-1]
    found = {
        "first": first,
        "middle": row[(len(row) - 1) // 2],
        "last": last,
        "median": median(row),
        EVENNESS: first / last if last else math.inf,
    }[place]
    return found if math.isfinite(found) else None


def _is_level(exponent: float | None) -> bool:
    return exponent is not None and abs(exponent) <= LIMIT


def _goes(exponent: float | None) -> str:
    if exponent is None:
        return "vanishes at some depth"
    if _is_level(exponent):
        return f"goes as depth^{exponent:.2f}, within depth^{LIMIT:g} of level"
    return f"{'grows' if exponent > 0 else 'falls'} as depth^{exponent:.2f}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
