"""Depth-by-time heat maps: for each probe and stack, layers upwards and updates to the right."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from deepnet.report.cells import Scale, Values, packed, scale_of
from deepnet.report.folder import ReportedRun
from deepnet.report.readings import (
    Reading,
    chosen_columns,
    in_order,
    matrix_of,
    places_of,
    together,
)
from deepnet.report.wording import PROBES, STACKS, probe_words, site_label, stack_of

_ALL_CELLS = 1_450_000
"""Cells of all maps of a page together, two bytes each at most: with the drawing library, a page under 5 MB."""
_MOST_COLUMNS, _FEWEST_COLUMNS = 240, 24
SCREEN_ROWS = 600
"""The most pixels of height that a map has: layers beyond that are told apart by zooming."""
TOGETHER = "together"
"""The place that stands for all roles of a layer."""


@dataclass(frozen=True, kw_only=True)
class MapOption:
    """What a map can show: one site or role of the stack, with the scale that all runs share."""

    place: str
    label: str
    scale: Scale


@dataclass(frozen=True, kw_only=True)
class MapRun:
    """The cells of one run."""

    run: int
    steps: list[int]
    layers: int
    cells: dict[str, str]
    """Place -> `cells.packed`; a place that the run has no reading of is left out."""


@dataclass(frozen=True, kw_only=True)
class DepthMap:
    """One probe over one stack, in each run that has readings of it."""

    key: str
    title: str
    about: str
    stack: str
    options: list[MapOption]
    runs: list[MapRun]

    @property
    def num_cells(self) -> int:
        """The cells of all runs and options."""
        return sum(len(part.steps) * part.layers * len(part.cells) for part in self.runs)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The matrices of one run over one stack, by place."""

    run: int
    steps: list[int]
    matrices: dict[str, Values]
    labels: dict[str, str]

    @property
    def layers(self) -> int:
        """The layers of the deepest place."""
        return max(len(matrix) for matrix in self.matrices.values())

    def only(self, place: str) -> "Measured":
        """Return what the roles come to together, and one place; the first place where there is neither."""
        kept = [name for name in self.matrices if name in (TOGETHER, place)] or [*self.matrices][:1]
        matrices = {name: self.matrices[name] for name in kept}
        return replace(self, matrices=matrices, labels={name: self.labels[name] for name in kept})

    def at(self, columns: Sequence[int]) -> "Measured":
        """Return some of the readings."""
        steps = [self.steps[column] for column in columns]
        matrices = {place: matrix[:, list(columns)] for place, matrix in self.matrices.items()}
        return replace(self, steps=steps, matrices=matrices)


def depth_maps(runs: Sequence[ReportedRun], *, spent: int = 0) -> list[DepthMap]:
    """Return the maps of some runs, probe by probe, the encoder before the decoder.

    `spent` cells of the page are taken by other maps.
    """
    ordered = [in_order(run.readings) for run in runs]
    limit = _columns_for(ordered, _ALL_CELLS - spent)
    shown = [_thinned(run, readings, limit) for run, readings in zip(runs, ordered, strict=True)]
    found: list[DepthMap] = []
    for probe in _probes(ordered):
        for stack in STACKS:
            measured = [
                part
                for number, readings in enumerate(shown)
                if (part := measured_stack(readings, probe, stack, run=number))
            ]
            if measured:
                found.append(depth_map(f"{probe}-{stack}", probe, stack, measured))
    return found


def measured_stack(
    readings: Sequence[Reading], probe: str, stack: str, *, run: int = 0
) -> Measured | None:
    """Return what a probe read over one stack, with what its roles come to together first; None for nothing."""
    matrices = {
        place: matrix
        for place in places_of(readings, probe)
        if stack_of(place) == stack and (matrix := matrix_of(readings, probe, place)).size
    }
    if not matrices:
        return None
    labels = {place: site_label(place) for place in matrices}
    if joint := together(probe, list(matrices.values())):
        labels, matrices = {TOGETHER: joint[0], **labels}, {TOGETHER: joint[1], **matrices}
    steps = [reading.step for reading in readings]
    return Measured(run=run, steps=steps, matrices=matrices, labels=labels)


def depth_map(key: str, probe: str, stack: str, measured: Sequence[Measured]) -> DepthMap:
    """Return one map; every place has one scale over all runs, so that equal colours are equal values."""
    words = probe_words(probe)
    labels = {place: label for part in measured for place, label in part.labels.items()}
    scales = {
        place: scale_of([part.matrices[place] for part in measured if place in part.matrices])
        for place in labels
    }
    return DepthMap(
        key=key,
        title=words.title,
        about=words.about,
        stack=stack,
        options=[MapOption(place=p, label=labels[p], scale=scales[p]) for p in labels],
        runs=[_packed(part, scales) for part in measured],
    )


def _packed(part: Measured, scales: dict[str, Scale]) -> MapRun:
    return MapRun(
        run=part.run,
        steps=part.steps,
        layers=part.layers,
        cells={place: packed(matrix, scales[place]) for place, matrix in part.matrices.items()},
    )


def _probes(runs: Iterable[Sequence[Reading]]) -> list[str]:
    """Return every probe that went through layers: those of the page's order first, then any others."""
    found = {
        probe: None
        for readings in runs
        for reading in readings
        for probe, places in reading.probes.items()
        if any(map(stack_of, places))
    }
    return [*(probe for probe in PROBES if probe in found), *(p for p in found if p not in PROBES)]


def _columns_for(runs: Sequence[Sequence[Reading]], cells: int) -> int:
    """Return how many readings of each run the page has room for."""
    rows = 0
    for readings in runs:
        sizes: dict[tuple[str, str], int] = {}
        for reading in readings:
            for probe, places in reading.probes.items():
                for place, column in places.items():
                    if stack_of(place):
                        sizes[probe, place] = max(len(column), sizes.get((probe, place), 0))
        rows += sum(sizes.values())
    return max(_FEWEST_COLUMNS, min(_MOST_COLUMNS, cells // max(rows, 1)))


def _thinned(run: ReportedRun, readings: list[Reading], limit: int) -> list[Reading]:
    steps = [reading.step for reading in readings]
    events = [incident["step"] for incident in run.incidents]
    return [readings[place] for place in chosen_columns(steps, events, limit)]


def left_out_notes(runs: Sequence[ReportedRun], maps: Iterable[DepthMap]) -> list[str]:
    """Say what the maps leave out, or do not show at once."""
    drawn = {part.run: part for one in maps for part in one.runs}
    notes = []
    for number, part in sorted(drawn.items()):
        total = len(in_order(runs[number].readings))
        if len(part.steps) < total:
            notes.append(
                f"{runs[number].name}: {len(part.steps)} of {total:,} readings are drawn, evenly spaced and on both "
                "sides of each incident, with all layers; the others are in probes.jsonl."
            )
        if part.layers > SCREEN_ROWS:
            notes.append(
                f"{runs[number].name}: {part.layers:,} layers are more than a map has pixels; zoom to tell single ones."
            )
    return notes
