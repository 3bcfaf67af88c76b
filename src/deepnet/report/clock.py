"""What time it was in a run, and how many tokens it had seen, at each update: the other axes of its curves."""

from dataclasses import dataclass

from deepnet.report.folder import ReportedRun
from deepnet.report.rounding import real, short, spread

_MOST_POINTS = 400
"""Updates of a run whose time and tokens the page knows; in between it goes straight."""


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Target tokens and seconds of training by update; empty where a run did not record them."""

    steps: list[int]
    tokens: list[float]
    seconds: list[float]


def clock_of(run: ReportedRun) -> Clock:
    """Return the clock of a run, from nothing at update 0 on; of updates done twice the later ones count."""
    at = {0: (0.0, 0.0)}
    for record in run.metrics:
        tokens, seconds = real(record.get("tokens")), real(record.get("seconds"))
        if tokens == tokens and seconds == seconds:
            at[record["step"]] = (tokens, seconds)
    steps = sorted(at)
    kept = [steps[place] for place in spread(len(steps), _MOST_POINTS)]
    return Clock(
        steps=kept,
        tokens=[short(at[step][0]) or 0.0 for step in kept],
        seconds=[short(at[step][1]) or 0.0 for step in kept],
    )
