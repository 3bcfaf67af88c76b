"""What a run recorded and then went back from: the guard takes steps back, the page keeps them as faint lines."""

from collections.abc import Sequence
from typing import Any

from deepnet.report.incidents import Incident

Points = list[tuple[int, Any]]


def kept_and_undone(points: Sequence[tuple[int, Any]]) -> tuple[Points, Points]:
    """Return the points that stand, by step, and those that a later point of the same or an earlier step replaced.

    Each replaced stretch starts at the point that stands before it, so that its line begins where the run went back to.
    """
    kept: Points = []
    undone: Points = []
    for point in points:
        start = next((n for n, (step, _) in enumerate(kept) if step >= point[0]), len(kept))
        if start < len(kept):
            undone += kept[max(0, start - 1) :]
            del kept[start:]
        kept.append(point)
    return kept, undone


def taken_back(incidents: Sequence[Incident], key: str) -> Points:
    """Return a number of the last steps of those incidents from which the run went back, as far as it went back."""
    return [
        (step, value)
        for one in incidents
        if one.back_to is not None
        for step, value in one.last_points(key)
        if step > one.back_to
    ]
