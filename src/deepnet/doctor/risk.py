"""From signs to a probability: one logistic, whose weights are data.

    risk = 1 / (1 + exp(-(bias + sum over the signs of weight * max(excess + 1, 0))))

A sign more than a unit within its limit says nothing, so that no good sign makes up for a bad one; at its limit it
counts for one, at three units beyond for four. `risk.json` has the weights and how they were found.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from deepnet.doctor.signs import Sign

Verdict = Literal["trains", "at risk", "diverges"]


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What a risk is computed with."""

    bias: float
    signs: Mapping[str, float]
    """The weight of each sign by its name; none below 0."""
    how: str
    """How they were found."""


def shipped_weights() -> Weights:
    """Return the weights that come with the package."""
    text = (resources.files("deepnet.doctor") / "risk.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return Weights(**found)


def feature(excess: float) -> float:
    """Return what a weight multiplies: 0 from one unit within the limit on, 1 at the limit."""
    return max(excess + 1.0, 0.0)


def risk_of(signs: Sequence[Sign], weights: Weights) -> float:
    """Return the probability, from 0 to 1, that the model does not train."""
    return logistic(
        weights.bias + sum(weights.signs[sign.name] * feature(sign.excess) for sign in signs)
    )


def verdict_of(risk: float) -> Verdict:
    """Return the word for a risk: below a third, between, above two thirds."""
    return "trains" if risk < 1 / 3 else "at risk" if risk <= 2 / 3 else "diverges"


def logistic(x: float) -> float:
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0
