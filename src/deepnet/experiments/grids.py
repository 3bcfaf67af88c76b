"""Experiments that compare settings by one number: each line trained at some depths, and who ends lower."""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deepnet.experiments.base import Cell, Experiment, FinishedCell
from deepnet.experiments.comparison import Read, by_seed, over_seeds, ratios
from deepnet.experiments.measures import Measure, active_share, held_out_loss, layer_similarity
from deepnet.experiments.pictures import COLOURS, draw_lines, draw_spread, finish_axes
from deepnet.experiments.tables import line_rows, markdown
from deepnet.experiments.verdicts import Finding, Verdict


@dataclass(frozen=True)
class Quantity:
    """A number that is read of a model, and the positive one that ratios are made of."""

    name: str
    """As the measure calls it."""
    measure: Measure
    label: str
    """With its unit."""
    compared: str
    """What the positive number is."""
    positive: Callable[[float], float]


LOSS = Quantity(
    "loss", held_out_loss, "validation loss, nats per target token", "perplexity", math.exp
)
SIMILARITY = Quantity(
    "similarity",
    layer_similarity,
    "cosine of the outputs of adjacent decoder layers",
    "1 less the cosine of adjacent layers",
    lambda cosine: 1.0 - cosine,
)
ACTIVE = Quantity(
    "active",
    active_share,
    "share of feed-forward activations that are not zero",
    "share of activations that are not zero",
    float,
)


@dataclass(frozen=True, kw_only=True)
class Rivals:
    """A part of a claim: what one line ends with is below what another does at the same seed, or above."""

    of: str
    to: str
    layers: int
    to_layers: int = 0
    """Of the other; 0 is as many."""
    limit: float = 1.0
    side: Literal["below", "above"] = "below"


@dataclass(frozen=True, kw_only=True)
class Grid(Experiment):
    """Every line at every depth, read at some updates, judged at the last."""

    quantity: Quantity = LOSS
    depths: tuple[int, ...] = (18,)
    updates: tuple[int, ...] = (50, 100, 200, 300)
    """Updates after which readings are taken, besides the start."""
    schedule: tuple[str, ...] = ("optimizer.lr=1e-3", "schedule.warmup_steps=100")
    """In place of the papers' 4,000 updates of warm-up, which are more than these runs have."""
    lines: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """section.key=value of each line; where the schedule names the same key, the line's counts."""

    @abstractmethod
    def rivals(self) -> Sequence[Rivals]:
        """Return the parts of the claim."""

    def cells(self) -> list[Cell]:
        """Return the grid, all of the first seed first."""
        return [
            Cell(
                line=line,
                layers=layers,
                seed=seed,
                updates=self.updates[-1],
                settings=(*self.schedule, *settings),
            )
            for seed, layers, (line, settings) in product(
                self.seeds, self.depths, self.lines.items()
            )
        ]

    def steps(self) -> Sequence[int]:
        """Return the start and the updates."""
        return (0, *self.updates)

    def measures(self) -> Sequence[Measure]:
        """Return the one of the quantity."""
        return (self.quantity.measure,)

    def verdict(self, cells: Sequence[FinishedCell]) -> Verdict:
        """Return what the rivals come to at the last update."""
        return Verdict(tuple(self._finding(cells, rivals) for rivals in self.rivals()))

    def table(self, cells: Sequence[FinishedCell]) -> str:
        """Return the quantity by update, a table for each depth."""
        header = ["", *(f"after {step}" for step in self.steps())]
        reads = [self._read(step) for step in self.steps()]
        parts = [f"{self.quantity.label.capitalize()}; median over the seeds [lowest, highest]"]
        for layers in self.depths:
            rows = line_rows(cells, reads, lines=self.lines, layers=layers)
            parts += [f"{layers}L-{layers}L", markdown(header, rows)]
        return "\n\n".join(parts)

    def draw(self, cells: Sequence[FinishedCell]) -> Figure:
        """Return the quantity over the updates, a panel for each depth, and over the depths if there are some."""
        several = len(self.depths) > 1
        figure = Figure(figsize=(4 * (len(self.depths) + several), 4), layout="constrained")
        panels = figure.subplots(1, len(self.depths) + several, squeeze=False)[0]
        reads = {step: self._read(step) for step in self.steps()}
        for axes, layers in zip(panels, self.depths, strict=False):
            draw_lines(axes, cells, reads, lines=self.lines, layers=layers)
            title = f"{layers}L-{layers}L"
            finish_axes(axes, title=title, x="updates", y=self.quantity.label)
        if several:
            self._draw_depths(panels[-1], cells)
        panels[0].legend(frameon=False, fontsize=8)
        return figure

    def _draw_depths(self, axes: Axes, cells: Sequence[FinishedCell]) -> None:
        last = self.updates[-1]
        for colour, line in zip(COLOURS, self.lines, strict=False):
            ends = {
                n: over_seeds(cells, self._read(last), line=line, layers=n) for n in self.depths
            }
            draw_spread(axes, ends, colour=colour, label=line)
        finish_axes(axes, title=f"after {last}", x="layers per stack", y=self.quantity.label)

    def _read(self, step: int) -> Read:
        return lambda cell: cell.value(self.quantity.name, step)

    def _end(self, cell: FinishedCell) -> float:
        return self.quantity.positive(cell.value(self.quantity.name, self.updates[-1]))

    def _finding(self, cells: Sequence[FinishedCell], rivals: Rivals) -> Finding:
        to_layers = rivals.to_layers or rivals.layers
        of = by_seed(cells, self._end, line=rivals.of, layers=rivals.layers)
        to = by_seed(cells, self._end, line=rivals.to, layers=to_layers)
        names = [f"{rivals.of} at {rivals.layers}L-{rivals.layers}L", rivals.to]
        if rivals.to_layers:
            names[1] += f" at {to_layers}L-{to_layers}L"
        return Finding(
            what=f"{self.quantity.compared} after {self.updates[-1]} updates, {' over '.join(names)}",
            values=ratios(of, to),
            limit=rivals.limit,
            side=rivals.side,
        )
