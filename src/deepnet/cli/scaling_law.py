"""Verb `scaling-law`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepnet.cli.options import Json, TrustCode, examples
from deepnet.cli.output import Output
from deepnet.errors import ConfigError

if TYPE_CHECKING:
    from deepnet.growth.law import Estimate, Law
    from deepnet.growth.scaling_law import DepthRow, ScalingLaw

SCALING_LAW_EXAMPLES = examples(
    "deepnet scaling-law runs/depth_*                      # BLEU and loss against depth, seeds together",
    "deepnet scaling-law runs/depth_* --at 100 --at 200 --out results/depth",
    "deepnet scaling-law --points 12:24.5,24:26.2,48:27.7  # the baseline of DeepNet's paper",
)

_UNTOLD = "; whether it bends cannot be told from three points"
_UNPRICED = 5
"""Columns of a table without costs."""


def scaling_law(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN...", help="Run folders of several depths.", show_default=False),
    ] = None,
    points: Annotated[
        str | None,
        typer.Option(metavar="D:S,D:S,...", help="Depths and scores instead of runs."),
    ] = None,
    at: Annotated[
        list[int] | None,
        typer.Option(
            metavar="D", help="Depth to extrapolate to; may be repeated.", show_default="200"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to write law.json and figure.png to."),
    ] = None,
    trust_code: TrustCode = None,
    as_json: Json = False,
) -> None:
    """Fit the law of depth, L(d) = A ln d + B, to runs of one task and width.

    d counts the layers of all stacks. Says what a point gained costs, and when the data do not carry a law. Intervals
    are of 95%: docs/growth.md says how they are found.
    """
    from deepnet.growth.scaling_law import scaling_law as fit

    output = Output(as_json=as_json)
    found = fit(
        runs or (),
        points=_pairs(points) if points is not None else (),
        at=at or (200,),
        out=out,
        trust_code=trust_code or (),
    )
    output.result(found.to_dict(), show=lambda: _show(output, found, out))


def _pairs(text: str) -> list[tuple[int, float]]:
    """Return depths and scores; raises ConfigError where they are something else."""
    try:
        parts = (part.partition(":") for part in text.replace(",", " ").split())
        pairs = [(int(depth), float(value)) for depth, _, value in parts]
    except ValueError:
        pairs = []
    if not pairs:
        raise ConfigError(
            f"--points is {text!r}; expected depths and scores, such as 12:24.5,24:26.2,48:27.7"
        )
    return pairs


def _show(output: Output, found: "ScalingLaw", out: Path | None) -> None:
    for line in found.differences:
        output.say(f"the runs differ in {line}")
    for measure, law in found.laws.items():
        output.heading(f"\n{measure} = A ln d + B")
        output.table(["", "", "from", "to"], _estimates(law))
        output.say()
        columns = _columns(measure) if found.costs else _columns(measure)[:_UNPRICED]
        output.table(columns, [_cells(row)[: len(columns)] for row in found.rows(measure)])
        for objection in law.objections:
            output.say(f"the data do not carry a law: {objection}")
        if not law.objections:
            output.say(f"the data carry the law{'' if law.curvature else _UNTOLD}")
    if out is not None:
        output.say(f"\n{out / 'law.json'}, {out / 'figure.png'}")


def _estimates(law: "Law") -> Iterator[list[object]]:
    yield ["A", *_interval(law.slope)]
    yield ["B", *_interval(law.intercept)]
    yield ["twice the depth, A ln 2", law.per_doubling, None, None]
    for depth, found in law.at.items():
        yield [f"a run of {depth:,} layers", *_interval(found)]
    if law.curvature:
        yield ["C, of C (ln d)^2 if there were one", *_interval(law.curvature)]


def _interval(found: "Estimate") -> list[object]:
    return list(found.to_dict().values())


def _columns(measure: str) -> list[str]:
    unit = "nat" if measure == "loss" else "point"
    costs = ["parameters", "FLOPs per token", f"parameters per {unit}", f"FLOPs per {unit}"]
    return ["layers", "runs", measure, "law", "residual", *costs]


def _cells(row: "DepthRow") -> list[object]:
    cost = [row.cost.parameters, row.cost.flops] if row.cost else [None, None]
    paid = [row.parameters_per_point, row.flops_per_point]
    return [row.depth, row.num_runs, row.value, row.law, f"{row.residual:+.2g}", *cost, *paid]
