"""BranchNorm, figure 3: gradient norm and loss at the very start, of Post-LN, DeepNorm and BranchNorm."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import ClassVar, Self

from matplotlib.figure import Figure

from deepnet.experiments.base import PAPER_SIZE, Cell, Experiment, FinishedCell
from deepnet.experiments.comparison import Read, by_seed, ratios
from deepnet.experiments.measures import Measure, gradient_norms, held_out_loss
from deepnet.experiments.pictures import draw_lines, finish_axes
from deepnet.experiments.tables import line_rows, markdown
from deepnet.experiments.verdicts import Finding, Verdict

LINES = {"Post-LN": "post_ln", "DeepNorm": "deepnorm", "BranchNorm": "branchnorm"}
OURS = "BranchNorm"


@dataclass(frozen=True, kw_only=True)
class Study(Experiment):
    """One depth, three schemes, every update of the very start."""

    claim: ClassVar[str] = (
        "At the very start BranchNorm's gradient norm is smoother than Post-LN's and than DeepNorm's, "
        "and its loss is no higher"
    )
    source: ClassVar[str] = "Liu et al. 2023, BranchNorm, arXiv 2305.02790, abstract and figure 3"
    comparable: ClassVar[str] = (
        "The paper trains at width 512 and up to 1,000 layers with Adam, a rate of 5e-4 and a warm-up of 4,000. Here: "
        "50L-50L of width 64, feed-forward 128, 2 heads, the same optimiser, rate, warm-up and growth of the branches "
        "over 4,000 updates, on German to English sentences of everyday speech. The figure itself was not at hand: the "
        "claim is that of the abstract, put into numbers by us. How rough a gradient norm is, is the root mean square "
        "change of its logarithm from reading to reading, of the loss on the same valid sentences, so that it is not "
        "the sentences that differ. No higher: perplexity within a hundredth."
    )
    hours: ClassVar[str] = (
        "3 minutes of one thread, estimated from the updates of DeepNet's figure 5"
    )
    full_hours: ClassVar[str] = "20 minutes on a card, estimated at 5 ms a layer and update"

    layers: int = 50
    updates: tuple[int, ...] = tuple(range(1, 17))
    """Updates after which readings are taken, besides the start; loss is judged at the last."""

    @classmethod
    def full(cls) -> Self:
        """Return 100L-100L of the paper's width and batch, and 100 updates."""
        return cls(
            layers=100,
            updates=tuple(range(1, 101)),
            sentences=64,
            settings=PAPER_SIZE,
        )

    def cells(self) -> list[Cell]:
        """Return the grid, all of the first seed first."""
        return [
            Cell(
                line=line,
                layers=self.layers,
                seed=seed,
                updates=self.updates[-1],
                settings=(f"scheme.name={scheme}",),
            )
            for seed, (line, scheme) in product(self.seeds, LINES.items())
        ]

    def steps(self) -> Sequence[int]:
        """Return the start and every update."""
        return (0, *self.updates)

    def measures(self) -> Sequence[Measure]:
        """Return gradients and loss."""
        return (gradient_norms, held_out_loss)

    def verdict(self, cells: Sequence[FinishedCell]) -> Verdict:
        """Return whether BranchNorm's gradient is the smoother, and its perplexity no higher."""
        return Verdict(
            tuple(
                finding
                for rival in LINES
                if rival != OURS
                for finding in (
                    Finding(
                        what=f"roughness of the gradient norm, {OURS} over {rival}",
                        values=self._ratios(cells, self._roughness, rival),
                        limit=1.0,
                        side="below",
                    ),
                    Finding(
                        what=f"perplexity after {self.updates[-1]} updates, {OURS} over {rival}",
                        values=self._ratios(cells, self._perplexity, rival),
                        limit=1.01,
                        side="below",
                    ),
                )
            )
        )

    def table(self, cells: Sequence[FinishedCell]) -> str:
        """Return gradient norms and losses at some updates, and the roughness."""
        shown = [step for step in self.steps() if not step & (step - 1)]
        header = ["scheme", *(f"after {step}" for step in shown)]
        norms = [*(_read("gradient", step) for step in shown), self._roughness]
        losses = [_read("loss", step) for step in shown]
        of_norms, of_losses = (
            line_rows(cells, reads, lines=LINES, layers=self.layers) for reads in (norms, losses)
        )
        return "\n\n".join(
            [
                "Gradient norm of all weights, and its roughness; median over the seeds [lowest, highest]",
                markdown([*header, "roughness"], of_norms),
                "Validation loss in nats per target token",
                markdown(header, of_losses),
            ]
        )

    def draw(self, cells: Sequence[FinishedCell]) -> Figure:
        """Return gradient norm and loss over the updates."""
        figure = Figure(figsize=(8, 4), layout="constrained")
        panels = figure.subplots(1, 2)
        names = {"gradient": "gradient norm", "loss": "validation loss, nats per target token"}
        for axes, (name, label) in zip(panels, names.items(), strict=True):
            reads = {step: _read(name, step) for step in self.steps()}
            draw_lines(axes, cells, reads, lines=LINES, layers=self.layers)
            log = "y" if name == "gradient" else ""
            title = f"{self.layers}L-{self.layers}L"
            finish_axes(axes, title=title, x="updates", y=label, log=log)
        panels[0].legend(frameon=False, fontsize=8)
        return figure

    def _roughness(self, cell: FinishedCell) -> float:
        norms = [cell.value("gradient", step) for step in self.steps()]
        if not all(norm > 0 for norm in norms):
            return float("nan")
        changes = [math.log(after / before) for before, after in pairwise(norms)]
        return math.sqrt(sum(change**2 for change in changes) / len(changes))

    def _perplexity(self, cell: FinishedCell) -> float:
        return math.exp(cell.value("loss", self.updates[-1]))

    def _ratios(self, cells: Sequence[FinishedCell], read: Read, rival: str) -> tuple[float, ...]:
        of, to = (by_seed(cells, read, line=n, layers=self.layers) for n in (OURS, rival))
        return ratios(of, to)


def _read(name: str, step: int) -> Read:
    return lambda cell: cell.value(name, step)
