"""What some seeds say of a claim: a mean with Student's 95% interval, and whether that clears a limit."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Answer = Literal["holds", "does not", "cannot be told"]
FEWEST_SEEDS = 3
"""With fewer, nothing can be told."""
STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""The 97.5% point of Student's t for 1, 2, ... degrees of freedom."""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and where it lies with 95% confidence; infinitely wide for one value."""

    mean: float
    low: float
    high: float
    num_seeds: int

    def to_dict(self) -> dict[str, float | None]:
        """Return everything for JSON, None for what is infinite."""
        return {name: _finite(value) for name, value in asdict(self).items()}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A part of a claim: some quantity is below a limit, or above it."""

    what: str
    values: tuple[float, ...]
    """One per seed; positive, as ratios are."""
    limit: float
    side: Literal["below", "above"]

    @property
    def interval(self) -> Interval | None:
        """The geometric mean of the values; None where there is none, or one is not finite and positive."""
        return ratio_interval(self.values)

    @property
    def answer(self) -> Answer:
        """Whether the whole interval is on the side of the limit that is claimed, or on the other."""
        found = self.interval
        if found is None or found.num_seeds < FEWEST_SEEDS:
            return "cannot be told"
        below, above = found.high < self.limit, found.low > self.limit
        if not (below or above):
            return "cannot be told"
        return "holds" if below == (self.side == "below") else "does not"

    def sentence(self) -> str:
        """Return the finding in words."""
        claimed, found = f"claimed {self.side} {self.limit:g}", self.interval
        if found is None:
            return f"{self.what}: {claimed}; no numbers ({self.answer})"
        width = f" ({found.low:.3g} to {found.high:.3g})" if found.num_seeds > 1 else ""
        seeds = "1 seed" if found.num_seeds == 1 else f"{found.num_seeds} seeds"
        return f"{self.what}: {found.mean:.3g}{width}, {seeds}; {claimed}: {self.answer}"


@dataclass(frozen=True)
class Verdict:
    """What the parts of a claim come to."""

    findings: tuple[Finding, ...]

    @property
    def answer(self) -> Answer:
        """One part that does not hold decides; else one that cannot be told does."""
        answers = [finding.answer for finding in self.findings]
        for answer in ("does not", "cannot be told"):
            if answer in answers or not answers:
                return answer if answers else "cannot be told"
        return "holds"

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        findings = [
            {
                "what": one.what,
                "claimed": f"{one.side} {one.limit:g}",
                "values": [_finite(value) for value in one.values],
                "interval": None if one.interval is None else one.interval.to_dict(),
                "answer": one.answer,
            }
            for one in self.findings
        ]
        return {"answer": self.answer, "findings": findings}


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Return the mean of some finite values with Student's interval, None where there are none."""
    if not values or not all(map(math.isfinite, values)):
        return None
    mean, freedom = statistics.mean(values), len(values) - 1
    if not freedom:
        return Interval(mean, -math.inf, math.inf, 1)
    point = STUDENT[min(freedom, len(STUDENT)) - 1]
    half = point * statistics.stdev(values) / len(values) ** 0.5
    return Interval(mean, mean - half, mean + half, len(values))


def ratio_interval(values: Sequence[float]) -> Interval | None:
    """Return the geometric mean of some positive values, whose logarithms Student's interval is of."""
    if not all(value > 0 for value in values):
        return None
    found = mean_interval([math.log(value) for value in values])
    if found is None:
        return None
    low, high = (
        (0.0, math.inf) if found.num_seeds == 1 else (math.exp(found.low), math.exp(found.high))
    )
    return Interval(math.exp(found.mean), low, high, found.num_seeds)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
