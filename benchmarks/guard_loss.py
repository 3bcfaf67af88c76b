"""The rule by which the loss alone says that a run has levelled off, and how its numbers were found.

    python benchmarks/guard_loss.py

The rule may speak from update 20 on. It was settled on runs that were published before (results/guard/published.json:
three that level off, twenty that learn, Multi30k, other ends than today's): of all windows below, with the largest fall
that keeps silent on each healthy run by 0.05 nats, the one that speaks first, all three runs together.
"""

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PUBLISHED = Path(__file__).resolve().parent.parent / "results" / "guard" / "published.json"
FIRST = 20
"""The first update of which the rule may speak."""
BEGUN = 1.0
"""Nats that the loss must have fallen from the mean of its first ten: before that it has not begun, let alone ended."""
MARGIN = 0.05
"""Nats by which the rule had to stay clear of each healthy run that it was settled on."""


class Rule(NamedTuple):
    """The mean of the latest part of all losses so far is less than `fall` nats below that of the part before it."""

    latest: float
    earlier: float
    fall: float


LEVEL = Rule(latest=0.25, earlier=0.45, fall=0.15)


def levelled_off(losses: Sequence[float], rule: Rule = LEVEL) -> int | None:
    """Return the first update at which the rule says that a run has levelled off; None where it never does."""
    spoke = np.flatnonzero(falls(losses, rule.latest, rule.earlier) < rule.fall)
    return FIRST + int(spoke[0]) if len(spoke) else None


def falls(losses: Sequence[float], latest: float, earlier: float) -> NDArray[np.float64]:
    """Return, for each update from 20 on, how far the later mean is below the earlier one, nats."""
    sums = np.concatenate([[0.0], np.cumsum(losses)])
    ends = np.arange(FIRST, len(losses) + 1)
    late = np.maximum(1, np.round(latest * ends).astype(int))
    early = np.minimum(np.maximum(1, np.round(earlier * ends).astype(int)), ends - late)
    now = (sums[ends] - sums[ends - late]) / late
    before = (sums[ends - late] - sums[ends - late - early]) / early
    return np.where(np.mean(losses[:10]) - now < BEGUN, np.inf, before - now)


def settle() -> None:
    """Print the rules that speak first, each with the update at which it does in each run that levels off."""
    runs: dict[str, list[float]] = json.loads(PUBLISHED.read_text())["losses"]
    bad = [losses for name, losses in runs.items() if name.startswith("bad")]
    good = [losses for name, losses in runs.items() if not name.startswith("bad")]
    parts = [n / 20 for n in range(2, 17)]
    found: list[tuple[int, Rule, list[int]]] = []
    for latest, earlier in product(parts, parts):
        if latest + earlier > 1:
            continue
        fall = min(float(falls(losses, latest, earlier).min()) for losses in good) - MARGIN
        rule = Rule(latest, earlier, round(fall, 2))
        spoke = [levelled_off(losses, rule) or len(losses) for losses in bad]
        found.append((sum(spoke), rule, spoke))
    for _, rule, spoke in sorted(found)[:10]:
        print(rule, spoke)
    silent = all(levelled_off(losses) is None for losses in good)
    print("the rule taken:", LEVEL, [levelled_off(losses) for losses in bad], f"{silent=}")


if __name__ == "__main__":
    settle()
