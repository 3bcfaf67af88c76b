"""What depth pays: the law of depth of some runs, or of numbers given by hand, with what each point gained costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from deepnet.errors import ConfigError
from deepnet.growth.depth_runs import costs_of, other_differences, points_of, read_depth_runs
from deepnet.growth.law import Law, Point, fit_law
from deepnet.growth.law_picture import draw_laws
from deepnet.planning.forward_cost import ForwardCost
from deepnet.record import write_json
from deepnet.schemes.catalogue import TrustCode

BY_HAND = "score"
"""What numbers given by hand are called."""
_FALLING = ("loss",)
"""What is better where it is lower."""


@dataclass(frozen=True, kw_only=True)
class DepthRow:
    """A depth, what its runs came to, and what it costs beside the depth before it."""

    depth: int
    num_runs: int
    value: float
    """Mean over the runs."""
    law: float
    """What the law says."""
    residual: float
    cost: ForwardCost | None = None
    parameters_per_point: float | None = None
    """Parameters for each point, or nat, that the law gains from the depth before; None where it gains none."""
    flops_per_point: float | None = None
    """The same of the FLOPs of a token."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        cost = None if self.cost is None else vars(self.cost)
        return {**vars(self), "cost": cost}


@dataclass(frozen=True, kw_only=True)
class ScalingLaw:
    """The laws of all that was measured, by measure."""

    laws: Mapping[str, Law]
    costs: Mapping[int, ForwardCost]
    differences: Sequence[str] = ()
    """In what the runs differ, besides depth and seed."""

    def rows(self, measure: str) -> list[DepthRow]:
        """Return a row per depth."""
        law, rows = self.laws[measure], list[DepthRow]()
        for depth in sorted({point.depth for point in law.points}):
            values = [point.value for point in law.points if point.depth == depth]
            below = rows[-1] if rows else None
            row = DepthRow(
                depth=depth,
                num_runs=len(values),
                value=fmean(values),
                law=law.value(depth),
                residual=fmean(values) - law.value(depth),
                cost=self.costs.get(depth),
            )
            rows.append(_priced(row, below, sign=-1 if measure in _FALLING else 1))
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {"logarithm": "natural", "laws": self._laws(), "differences": [*self.differences]}

    def _laws(self) -> dict[str, Any]:
        return {
            measure: {
                "A": law.slope.to_dict(),
                "B": law.intercept.to_dict(),
                "per_doubling": law.per_doubling,
                "at": {str(depth): found.to_dict() for depth, found in law.at.items()},
                "C": law.curvature.to_dict() if law.curvature else None,
                "carries_law": not law.objections,
                "objections": list(law.objections),
                "points": [point._asdict() for point in law.points],
                "residuals": list(law.residuals),
                "depths": [row.to_dict() for row in self.rows(measure)],
            }
            for measure, law in self.laws.items()
        }


def scaling_law(
    runs: Sequence[str | Path] = (),
    *,
    points: Sequence[tuple[int, float]] = (),
    at: Sequence[int] = (200,),
    out: str | Path | None = None,
    trust_code: TrustCode = (),
) -> ScalingLaw:
    """Fit L(d) = A ln d + B to BLEU and to the validation loss of runs, or to points (depth, score) given by hand.

    d is the layers of all stacks; of one depth there may be several runs. `at` are depths to extrapolate to. `out` is a
    folder for law.json and figure.png; nothing is written without it. `trust_code` names the classes that the runs may
    bring. Raises ConfigError where there is nothing to fit, or where the runs differ in task or width.
    """
    if bool(runs) == bool(points):
        given = "both are" if runs else "neither is"
        raise ConfigError(
            f"a law is fitted to run folders or to points, and {given} given; give one"
        )
    found = _of_points(points, at) if points else _of_runs(runs, at, trust_code)
    if out is not None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "law.json", found.to_dict())
        draw_laws(found.laws, folder / "figure.png")
    return found


def _of_points(points: Sequence[tuple[int, float]], at: Sequence[int]) -> ScalingLaw:
    given = [Point(depth, value) for depth, value in points]
    return ScalingLaw(laws={BY_HAND: fit_law(given, at=at)}, costs={})


def _of_runs(paths: Sequence[str | Path], at: Sequence[int], trust_code: TrustCode) -> ScalingLaw:
    runs = read_depth_runs(paths, trust_code=trust_code)
    laws = {measure: fit_law(points, at=at) for measure, points in points_of(runs).items()}
    return ScalingLaw(laws=laws, costs=costs_of(runs), differences=other_differences(runs))


def _priced(row: DepthRow, below: DepthRow | None, *, sign: int) -> DepthRow:
    """Return a row with what each point gained since the row below costs, where that is known."""
    gained = sign * (row.law - below.law) if below else 0.0
    if below is None or row.cost is None or below.cost is None or gained <= 0.0:
        return row
    return DepthRow(
        **{
            **vars(row),
            "parameters_per_point": (row.cost.parameters - below.cost.parameters) / gained,
            "flops_per_point": (row.cost.flops - below.cost.flops) / gained,
        }
    )
