"""Incidents of the guard: a row each, and the last steps before it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from deepnet.report.folder import ReportedRun
from deepnet.report.lines import LineChart, chart, line
from deepnet.report.maps import DepthMap, depth_map, measured_stack
from deepnet.report.readings import Reading, reading_of
from deepnet.report.rounding import real, short
from deepnet.report.wording import ACTIONS, CHARTS, KINDS, STACKS

_MOST_DETAILS = 12
"""Incidents of a run whose last steps the page draws."""


@dataclass(frozen=True, kw_only=True)
class Incident:
    """What the guard saw and did."""

    key: str
    run: int
    step: int
    kind: str
    action: str
    where: str
    message: str
    back_to: int | None
    loss: float | None
    gradient_norm: float | None
    charts: list[LineChart]
    """Loss, gradient norm and learning rate of the last steps."""
    maps: list[DepthMap]
    """Gradient norm and LayerNorm input of the last steps, by layer."""


def incidents_of(runs: Sequence[ReportedRun]) -> list[Incident]:
    """Return the incidents of all runs, each run's in its order."""
    return [
        _incident(record, run=number, place=place)
        for number, run in enumerate(runs)
        for place, record in enumerate(run.incidents)
    ]


def undrawn_note(runs: Sequence[ReportedRun]) -> list[str]:
    """Say for which runs not every incident's last steps are drawn."""
    return [
        f"{run.name}: the last steps of the first {_MOST_DETAILS} of {len(run.incidents)} incidents are drawn; "
        "the others are in incidents/."
        for run in runs
        if len(run.incidents) > _MOST_DETAILS
    ]


def _incident(record: dict[str, Any], *, run: int, place: int) -> Incident:
    key = f"incident-{run}-{place}"
    details = record["details"] if place < _MOST_DETAILS else None
    kind, action = str(record.get("kind")), str(record.get("action"))
    where, back_to = record.get("where"), record.get("back_to")
    return Incident(
        key=key,
        run=run,
        step=record["step"],
        kind=KINDS.get(kind, kind),
        action=ACTIONS.get(action, action),
        where=where if isinstance(where, str) else "",
        message=str(record.get("message") or ""),
        back_to=back_to if isinstance(back_to, int) else None,
        loss=short(real(record.get("loss"))),
        gradient_norm=short(real(record.get("gradient_norm"))),
        charts=list(_charts(key, details or {}, run)),
        maps=list(_maps(key, details or {}, run, place=str(where or ""))),
    )


def _steps(details: dict[str, Any]) -> list[int]:
    steps = details.get("steps")
    return [step for step in steps if type(step) is int] if isinstance(steps, list) else []


def _charts(key: str, details: dict[str, Any], run: int) -> Iterator[LineChart]:
    for name in ("loss", "gradient_norm", "lr"):
        values = details.get(name)
        points = zip(_steps(details), values if isinstance(values, list) else [], strict=False)
        if found := line(points, run=run):
            yield chart(f"{key}-{name}", CHARTS[f"incident-{name}"], [found], "incidents/")


def _maps(key: str, details: dict[str, Any], run: int, *, place: str) -> Iterator[DepthMap]:
    """Yield maps per stack: gradient of all weights and of the place where it happened, input of that site's norm."""
    stack, *rest = place.split(".")
    role = ".".join([stack, *rest[1:]])
    site = ".".join([stack, *rest[1:2]])
    drawn = (("gradient_norm", "gradient", role), ("norm_input", "norm_input", site))
    for probe, name, wanted in drawn:
        readings = _by_step(details, name, probe)
        for one in STACKS:
            measured = measured_stack(readings, probe, one, run=run)
            if measured:
                chosen = measured.only(wanted)
                yield depth_map(f"{key}-{probe}-{one}", probe, one, [chosen])


def _by_step(details: dict[str, Any], name: str, probe: str) -> list[Reading]:
    """Return the rows of a window, place -> one list per step, as readings of probes.jsonl."""
    places = details.get(name)
    rows = places if isinstance(places, dict) else {}
    return [
        reading_of(
            {
                "step": step,
                probe: {p: steps[number] for p, steps in rows.items() if number < _length(steps)},
            }
        )
        for number, step in enumerate(_steps(details))
    ]


def _length(steps: Any) -> int:
    return len(steps) if isinstance(steps, list) else 0
