"""DeepNet, figure 4: what becomes of Post-LN without warm-up: model update, inputs of norms, gradients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import geometric_mean
from typing import ClassVar, Self

from matplotlib.figure import Figure

from deepnet.experiments.base import PAPER_SIZE, Cell, Experiment, FinishedCell
from deepnet.experiments.comparison import Read, by_seed, ratios
from deepnet.experiments.measures import Measure, gradient_norms, norm_inputs, output_update
from deepnet.experiments.pictures import draw_lines, finish_axes
from deepnet.experiments.tables import line_rows, markdown
from deepnet.experiments.verdicts import Finding, Verdict

BARE = "Post-LN without warm-up"
AIDED = ("Post-LN", "Post-LN-init without warm-up")
"""What the paper says helps: the warm-up, and a better start."""
NO_WARMUP = ("schedule.name=constant", "schedule.warmup_steps=0")
LINES: dict[str, tuple[str, ...]] = {
    BARE: ("scheme.name=post_ln", *NO_WARMUP),
    AIDED[0]: ("scheme.name=post_ln",),
    AIDED[1]: ("scheme.name=post_ln_init", *NO_WARMUP),
}

UPDATE = "Model update since the start, root mean square of the decoder's output"
NORM_INPUT = "Input of the decoder's norms, root mean square, geometric mean over sites and layers"
GRADIENT = "Gradient of a decoder layer, geometric mean over the layers"
FAR_APART = (UPDATE, GRADIENT)
"""What is drawn on a logarithmic scale."""


@dataclass(frozen=True, kw_only=True)
class Study(Experiment):
    """One depth, three ways to start."""

    claim: ClassVar[str] = (
        "Without warm-up Post-LN's update explodes at once, the inputs of its norms grow, and its gradients in the "
        "decoder vanish; a warm-up alleviates each, and so does a better initialisation"
    )
    source: ClassVar[str] = "Wang et al. 2022, DeepNet, arXiv 2203.00555, section 3 and figure 4"
    comparable: ClassVar[str] = (
        "The paper's figure is of 18L-18L models of width 512 on IWSLT-14 German to English. Here: the same depth, "
        "rate and warm-up (5e-4, 4,000 updates) at the width of its tiny models (64, feed-forward 128, 2 heads), on "
        "German to English sentences of everyday speech. Readings are taken on valid sentences without dropout. "
        "That Post-LN-init has no warm-up here is our reading, as the figure's legend was not at hand: only so is "
        "it the initialisation that helps."
    )
    hours: ClassVar[str] = "3 minutes of one thread (9 cells, on busy cores)"
    full_hours: ClassVar[str] = "10 minutes on a card, estimated at 5 ms a layer and update"

    layers: int = 18
    updates: tuple[int, ...] = (1, 2, 5, 10, 20, 30, 40)
    """Updates after which readings are taken; inputs and gradients are judged at the last."""
    early: int = 10
    """The update at which an exploding model update is looked for."""

    @classmethod
    def full(cls) -> Self:
        """Return the paper's width and batch, and 400 updates."""
        return cls(
            updates=(1, 2, 5, 10, 20, 30, 40, 60, 80, 100, 150, 200, 300, 400),
            sentences=64,
            settings=(*PAPER_SIZE, "model.dropout=0.4"),
        )

    def cells(self) -> list[Cell]:
        """Return the grid, all of the first seed first."""
        return [
            Cell(line=line, layers=self.layers, seed=seed, updates=self.updates[-1], settings=own)
            for seed, (line, own) in product(self.seeds, LINES.items())
        ]

    def steps(self) -> Sequence[int]:
        """Return the updates after which readings are taken."""
        return self.updates

    def measures(self) -> Sequence[Measure]:
        """Return update, inputs of norms, gradients."""
        return (output_update, norm_inputs, gradient_norms)

    def verdict(self, cells: Sequence[FinishedCell]) -> Verdict:
        """Return whether each of the three is worse without warm-up than with either aid."""
        return Verdict(tuple(finding for aid in AIDED for finding in self._against(cells, aid)))

    def _against(self, cells: Sequence[FinishedCell], aid: str) -> list[Finding]:
        end = self.updates[-1]

        def ratio(read: Read) -> tuple[float, ...]:
            return ratios(self._by_seed(cells, read, BARE), self._by_seed(cells, read, aid))

        where = f"{BARE} over {aid}"
        return [
            Finding(
                what=f"model update after {self.early} updates, {where}",
                values=ratio(_update(self.early)),
                limit=1.0,
                side="above",
            ),
            Finding(
                what=f"inputs of the decoder's norms after {end} updates, {where}",
                values=ratio(_norm_input(end)),
                limit=1.0,
                side="above",
            ),
            Finding(
                what=f"gradients of the decoder's layers after {end} updates, {where}",
                values=ratio(_gradient(end)),
                limit=1.0,
                side="below",
            ),
        ]

    def table(self, cells: Sequence[FinishedCell]) -> str:
        """Return the three quantities after each number of updates."""
        header = ["", *(f"after {step}" for step in self.updates)]
        parts = ["Median over the seeds [lowest, highest]"]
        for title, reads in self._quantities().items():
            rows = line_rows(cells, list(reads.values()), lines=LINES, layers=self.layers)
            parts += [title, markdown(header, rows)]
        return "\n\n".join(parts)

    def draw(self, cells: Sequence[FinishedCell]) -> Figure:
        """Return a panel per quantity."""
        figure = Figure(figsize=(11, 4), layout="constrained")
        quantities = self._quantities()
        panels = figure.subplots(1, len(quantities))
        for axes, (title, reads) in zip(panels, quantities.items(), strict=True):
            draw_lines(axes, cells, reads, lines=LINES, layers=self.layers)
            log = "xy" if title in FAR_APART else "x"
            finish_axes(axes, title=title.partition(",")[0], x="updates", y="", log=log)
        panels[0].legend(frameon=False, fontsize=8)
        return figure

    def _quantities(self) -> Mapping[str, Mapping[int, Read]]:
        return {
            title: {step: read(step) for step in self.updates}
            for title, read in (
                (UPDATE, _update),
                (NORM_INPUT, _norm_input),
                (GRADIENT, _gradient),
            )
        }

    def _by_seed(self, cells: Sequence[FinishedCell], read: Read, line: str) -> dict[int, float]:
        return by_seed(cells, read, line=line, layers=self.layers)


def _update(step: int) -> Read:
    return lambda cell: cell.value("update", step)


def _norm_input(step: int) -> Read:
    """Return what reads the inputs of norms after attention and feed-forward."""

    def read(cell: FinishedCell) -> float:
        sites = ("decoder.self", "decoder.cross", "decoder.ffn")
        return _middle([x for site in sites for x in cell.row("norm_input", site, step)])

    return read


def _gradient(step: int) -> Read:
    return lambda cell: _middle(cell.row("layer_gradient", "decoder", step))


def _middle(row: Sequence[float]) -> float:
    """Return the geometric mean; 0 where one is 0, NaN where there is none."""
    if any(value == 0 for value in row):
        return 0.0
    return geometric_mean(row) if row and all(value > 0 for value in row) else float("nan")
