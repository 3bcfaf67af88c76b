"""DeepNet, figure 3: Post-LN against Post-LN-init: gradients by layer, gradients by depth, validation loss."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Literal, Self

from matplotlib.figure import Figure

from deepnet.experiments.base import PAPER_SIZE, Cell, Experiment, FinishedCell
from deepnet.experiments.comparison import Read, by_seed, over_seeds, ratios
from deepnet.experiments.measures import Measure, gradient_norms, held_out_loss
from deepnet.experiments.pictures import COLOURS, draw_lines, draw_spread, finish_axes
from deepnet.experiments.tables import line_rows, markdown, spread
from deepnet.experiments.verdicts import Finding, Verdict

SCHEMES = {"Post-LN": "post_ln", "Post-LN-init": "post_ln_init"}
TOP_LAYERS = 3
"""What we take "the last several layers" to be."""


@dataclass(frozen=True, kw_only=True)
class Study(Experiment):
    """Gradients of both before the first update at every depth; one depth is trained."""

    claim: ClassVar[str] = (
        "Post-LN-init has the larger gradients in the top layers, and in the last decoder layer at every depth from "
        "6L-6L to 24L-24L; yet it learns where Post-LN does not"
    )
    source: ClassVar[str] = "Wang et al. 2022, DeepNet, arXiv 2203.00555, section 3 and figure 3"
    comparable: ClassVar[str] = (
        "The paper's figure is of models of width 512 on IWSLT-14 German to English, 18L-18L where no depth is said. "
        "Here: the same depths at the width of its tiny models (64, feed-forward 128, 2 heads), German to English "
        "sentences of everyday speech, and a run of 150 updates in place of 8,000, with its rate doubled and its "
        "warm-up shortened to match. What the claim compares is depth and initialisation, which are the paper's. "
        "Gradients are those of the loss on valid sentences, pooled over a layer's matrices, and judged before the "
        "first update, where the argument that the paper answers (large gradients near the output make Post-LN "
        "unstable) has them; when the paper's were read was not at hand, so that the table has later ones, too."
    )
    hours: ClassVar[str] = "5 minutes of one thread (24 cells, on busy cores)"
    full_hours: ClassVar[str] = "an hour and a half on a card, estimated at 5 ms a layer and update"

    sentences: int = 64
    depths: tuple[int, ...] = (6, 12, 18, 24)
    trained: int = 18
    """The depth that is trained, and whose gradients are shown by layer."""
    updates: tuple[int, ...] = (25, 50, 75, 100, 125, 150)
    """Updates after which the loss is read; the claim is judged at the last."""
    schedule: tuple[str, ...] = ("optimizer.lr=1e-3", "schedule.warmup_steps=100")

    @classmethod
    def full(cls) -> Self:
        """Return the paper's width, rate, warm-up, batch and 8,000 updates."""
        return cls(
            updates=(100, 500, 1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000),
            schedule=(),
            settings=(*PAPER_SIZE, "model.dropout=0.4"),
        )

    def cells(self) -> list[Cell]:
        """Return the grid, what is quick first, then all of the first seed first."""
        found = [
            Cell(
                line=line,
                layers=layers,
                seed=seed,
                updates=self.updates[-1] if layers == self.trained else 1,
                settings=(f"scheme.name={scheme}", *self.schedule),
            )
            for seed, layers, (line, scheme) in product(self.seeds, self.depths, SCHEMES.items())
        ]
        return sorted(found, key=lambda cell: cell.updates)

    def steps(self) -> Sequence[int]:
        """Return the start, where gradients are compared, and the updates after which the loss is read."""
        return (0, *self.updates)

    def measures(self) -> Sequence[Measure]:
        """Return gradients and loss."""
        return (gradient_norms, held_out_loss)

    def verdict(self, cells: Sequence[FinishedCell]) -> Verdict:
        """Return whether Post-LN-init's gradients are the larger, and its perplexity the smaller."""
        name, last = f"{self.trained}L-{self.trained}L", self.updates[-1]
        return Verdict(
            (
                _finding(
                    cells,
                    _top(0),
                    what=f"gradient of the last {TOP_LAYERS} decoder layers at {name}",
                    layers=self.trained,
                ),
                *(
                    _finding(
                        cells,
                        _last,
                        what=f"gradient of the last decoder layer at {n}L-{n}L",
                        layers=n,
                    )
                    for n in self.depths
                ),
                _finding(
                    cells,
                    self._perplexity,
                    what=f"perplexity after {last} updates at {name}",
                    layers=self.trained,
                    side="below",
                ),
            )
        )

    def table(self, cells: Sequence[FinishedCell]) -> str:
        """Return gradients by depth and losses by update."""
        of_depth = [
            [line, *(spread(over_seeds(cells, _last, line=line, layers=n)) for n in self.depths)]
            for line in SCHEMES
        ]
        of_update = {
            f"Gradient of the last {TOP_LAYERS} decoder layers, {self.trained}L-{self.trained}L": _top,
            f"Validation loss of {self.trained}L-{self.trained}L in nats per target token": _loss,
        }
        header = ["scheme", *(f"after {step}" for step in self.steps())]
        parts = [
            "Gradient of the last decoder layer before the first update; median over the seeds [lowest, highest]",
            markdown(["scheme", *(f"{n}L-{n}L" for n in self.depths)], of_depth),
        ]
        for title, read in of_update.items():
            reads = [read(step) for step in self.steps()]
            rows = line_rows(cells, reads, lines=SCHEMES, layers=self.trained)
            parts += [title, markdown(header, rows)]
        return "\n\n".join(parts)

    def draw(self, cells: Sequence[FinishedCell]) -> Figure:
        """Return the paper's three panels."""
        figure = Figure(figsize=(11, 4), layout="constrained")
        by_layer, by_depth, by_update = figure.subplots(1, 3)
        layers = {number: _layer(number) for number in range(1, self.trained + 1)}
        draw_lines(by_layer, cells, layers, lines=SCHEMES, layers=self.trained)
        for colour, line in zip(COLOURS, SCHEMES, strict=False):
            depths = {n: over_seeds(cells, _last, line=line, layers=n) for n in self.depths}
            draw_spread(by_depth, depths, colour=colour, label=line)
        losses = {step: _loss(step) for step in self.steps()}
        draw_lines(by_update, cells, losses, lines=SCHEMES, layers=self.trained)
        name = f"{self.trained}L-{self.trained}L"
        finish_axes(
            by_layer, title=f"{name}, at the start", x="decoder layer", y="gradient norm", log="y"
        )
        finish_axes(
            by_depth,
            title="last decoder layer, at the start",
            x="layers per stack",
            y="gradient norm",
        )
        finish_axes(by_update, title=name, x="updates", y="validation loss, nats per target token")
        by_layer.legend(frameon=False, fontsize=8)
        return figure

    def _perplexity(self, cell: FinishedCell) -> float:
        return math.exp(_loss(self.updates[-1])(cell))


def _finding(
    cells: Sequence[FinishedCell],
    read: Read,
    *,
    what: str,
    layers: int,
    side: Literal["below", "above"] = "above",
) -> Finding:
    """Return whether Post-LN-init's number at a depth is above Post-LN's at the same seed, or below."""
    of, to = (by_seed(cells, read, line=n, layers=layers) for n in ("Post-LN-init", "Post-LN"))
    name = f"{what}, Post-LN-init over Post-LN"
    return Finding(what=name, values=ratios(of, to), limit=1.0, side=side)


def _layer(number: int) -> Read:
    """Return what reads the gradient of a decoder layer before the first update."""

    def read(cell: FinishedCell) -> float:
        row = cell.row("layer_gradient", "decoder", 0)
        return row[number - 1] if len(row) >= number else float("nan")

    return read


def _last(cell: FinishedCell) -> float:
    return _layer(cell.cell.layers)(cell)


def _top(step: int) -> Read:
    """Return what reads the gradient of the top decoder layers together."""

    def read(cell: FinishedCell) -> float:
        row = cell.row("layer_gradient", "decoder", step)[-TOP_LAYERS:]
        return sum(norm**2 for norm in row) ** 0.5 if row else float("nan")

    return read


def _loss(step: int) -> Read:
    return lambda cell: cell.value("loss", step)
