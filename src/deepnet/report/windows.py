"""The last steps before an incident: curves, and maps of what each layer's gradient and norm inputs were."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from deepnet.report.folder import ReportedRun
from deepnet.report.incidents import Incident
from deepnet.report.lines import LineChart, chart, line
from deepnet.report.maps import DepthMap, Measured, depth_map, measured_stack
from deepnet.report.readings import Reading, reading_of
from deepnet.report.rounding import spread
from deepnet.report.wording import CHARTS, STACKS

MOST_WINDOWS = 12
"""Incidents of a run whose last steps the page draws."""
_ALL_CELLS = 560_000
"""Cells of all windows together: 12 incidents of 500 + 500 layers leave room for the maps of the run."""
_PROFILED = ("gradient_norm", "norm_input")
"""Probes that are drawn over the layers beside an incident."""
_LAST, _FEWEST = 4, 12
"""Steps at the end of a window that are always drawn, and how many are at least."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """What is drawn of one incident."""

    incident: Incident
    charts: list[LineChart]
    """Loss, gradient norm and learning rate of the last steps."""
    maps: list[DepthMap]
    """Gradient norm and LayerNorm input of the last steps, by layer."""


def windows_of(incidents: Sequence[Sequence[Incident]]) -> list[Window]:
    """Return what is drawn of the first incidents of each run."""
    drawn = [one for of_run in incidents for one in of_run[:MOST_WINDOWS]]
    measured = [[*_measured(one)] for one in drawn]
    rows = sum(part.layers * len(part.matrices) for parts in measured for _, _, part in parts)
    limit = max(_FEWEST, _ALL_CELLS // max(rows, 1))
    return [
        Window(incident=one, charts=list(_charts(one)), maps=list(_maps(one, parts, limit)))
        for one, parts in zip(drawn, measured, strict=True)
    ]


def profiles_of(window: Window, maps: Sequence[DepthMap]) -> list[tuple[DepthMap, int]]:
    """Return the maps whose columns beside the incident are drawn over the layers, each with the place of its run.

    They are the window's own, or where the last steps are not known those of the run's readings.
    """
    if window.maps:
        return [(found, 0) for found in window.maps]
    return [
        (found, number)
        for found in maps
        if found.key.rsplit("-", 1)[0] in _PROFILED
        for number, part in enumerate(found.runs)
        if part.run == window.incident.run
    ]


def undrawn_notes(runs: Sequence[ReportedRun], windows: Sequence[Window]) -> list[str]:
    """Say what of the incidents' last steps is not drawn."""
    notes = [
        f"{run.name}: the last steps of the first {MOST_WINDOWS} of {len(run.incidents)} incidents are drawn; "
        "the others are in incidents/."
        for run in runs
        if len(run.incidents) > MOST_WINDOWS
    ]
    thinned = [
        one
        for one in windows
        if any(len(part.steps) < len(one.incident.steps) for m in one.maps for part in m.runs)
    ]
    if thinned:
        notes.append(
            f"The maps of {len(thinned)} incidents leave out some of the earlier steps, to keep the page small; "
            "all are in incidents/."
        )
    return notes


def _charts(incident: Incident) -> Iterator[LineChart]:
    for name in ("loss", "gradient_norm", "lr"):
        if found := line(incident.last_points(name), run=incident.run):
            words = CHARTS[f"incident-{name}"]
            yield chart(f"{incident.key}-{name}", words, [found], "incidents/")


def _measured(incident: Incident) -> Iterator[tuple[str, str, Measured]]:
    """Yield probe, stack and matrices, the blamed stack first.

    They are the gradient of all weights and of the place, and the input of that site's norm.
    """
    blamed = incident.blamed
    site = ".".join(filter(None, (blamed.stack, blamed.site)))
    role = ".".join(filter(None, (site, blamed.role)))
    for probe, name, wanted in (
        ("gradient_norm", "gradient", role),
        ("norm_input", "norm_input", site),
    ):
        readings = _by_step(incident, name, probe)
        for stack in sorted(STACKS, key=lambda one: one != blamed.stack):
            found = measured_stack(readings, probe, stack, run=incident.run)
            if found:
                yield probe, stack, found.only(wanted)


def _maps(
    incident: Incident, parts: Sequence[tuple[str, str, Measured]], limit: int
) -> Iterator[DepthMap]:
    for probe, stack, part in parts:
        chosen = part.at(_chosen(len(part.steps), limit))
        yield depth_map(f"{incident.key}-{probe}-{stack}", probe, stack, [chosen])


def _chosen(steps: int, limit: int) -> list[int]:
    """Return at most `limit` of so many positions: the last ones, the others evenly spaced."""
    last = range(max(0, steps - _LAST), steps)
    return [*spread(max(0, steps - _LAST), limit - len(last)), *last]


def _by_step(incident: Incident, name: str, probe: str) -> list[Reading]:
    """Return the rows of a window, place -> one list per step, as readings of probes.jsonl."""
    rows = incident.last_rows(name)
    return [
        reading_of(
            {
                "step": step,
                probe: {p: steps[number] for p, steps in rows.items() if number < _length(steps)},
            }
        )
        for number, step in enumerate(incident.steps)
    ]


def _length(steps: Any) -> int:
    return len(steps) if isinstance(steps, list) else 0
