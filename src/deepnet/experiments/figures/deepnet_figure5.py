"""DeepNet, figure 5: the model update of Post-LN and DeepNorm over the first updates, 6L-6L to 100L-100L."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Self

from matplotlib.figure import Figure

from deepnet.experiments.base import Cell, Experiment, FinishedCell
from deepnet.experiments.comparison import Read, by_seed, growth, over_seeds, ratios
from deepnet.experiments.measures import Measure, output_update
from deepnet.experiments.pictures import COLOURS, draw_spread, finish_axes
from deepnet.experiments.tables import markdown, spread
from deepnet.experiments.verdicts import Finding, Verdict

SCHEMES = {"Post-LN": "post_ln", "DeepNorm": "deepnorm"}
FACTOR = 2.0
"""How far a model update may grow with depth and still pass for constant; the paper draws it and names none."""


@dataclass(frozen=True, kw_only=True)
class Study(Experiment):
    """Both schemes at every depth; how far the decoder's output has moved since the first weights."""

    claim: ClassVar[str] = (
        "DeepNorm's model update stays within a factor of 2 from 6L-6L to 100L-100L, Post-LN's does not, "
        "and at 100L-100L DeepNorm's is the smaller"
    )
    source: ClassVar[str] = "Wang et al. 2022, DeepNet, arXiv 2203.00555, section 3 and figure 5"
    comparable: ClassVar[str] = (
        "The paper's figure is of models of this very size (width 64, feed-forward 128, 2 heads), from 6L-6L to "
        "100L-100L, on IWSLT-14 German to English. Here: the same size, depths, optimiser, rate and warm-up (Adam, "
        "5e-4, 4,000 updates from 1e-7), German to English sentences of everyday speech, and small batches. The "
        "factor of 2 is ours, as the paper draws curves and names no number; so is the number of updates, which it "
        "calls the early stage. The update is the root mean square over the elements of the decoder's output, on "
        "valid sentences without dropout."
    )
    hours: ClassVar[str] = "3 minutes of one thread (24 cells, on busy cores)"
    full_hours: ClassVar[str] = "an hour on a card, estimated at 5 ms a layer and update"

    depths: tuple[int, ...] = (6, 18, 50, 100)
    updates: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Updates after which the model is compared with what it was; the claim is judged at the last."""

    @classmethod
    def full(cls) -> Self:
        """Return seven depths, 200 updates of the papers' batch, five seeds."""
        return cls(
            depths=(6, 12, 18, 24, 50, 75, 100),
            updates=(1, 2, 4, 8, 16, 32, 64, 100, 150, 200),
            seeds=(1, 2, 3, 4, 5),
            sentences=64,
            settings=("batching.max_tokens=4096",),
        )

    def cells(self) -> list[Cell]:
        """Return the grid, all of the first seed first."""
        return [
            Cell(
                line=line,
                layers=layers,
                seed=seed,
                updates=self.updates[-1],
                settings=(f"scheme.name={scheme}",),
            )
            for seed, layers, (line, scheme) in product(self.seeds, self.depths, SCHEMES.items())
        ]

    def steps(self) -> Sequence[int]:
        """Return the updates after which readings are taken."""
        return self.updates

    def measures(self) -> Sequence[Measure]:
        """Return the model update alone."""
        return (output_update,)

    def verdict(self, cells: Sequence[FinishedCell]) -> Verdict:
        """Return whether each update grows by less or more than the factor, and which is the smaller at the end."""
        read, first, last = self._at(self.updates[-1]), self.depths[0], self.depths[-1]
        grown = {line: growth(cells, read, line=line, depths=self.depths) for line in SCHEMES}
        deepest = {line: by_seed(cells, read, line=line, layers=last) for line in SCHEMES}
        span = f"largest over smallest update, {first}L-{first}L to {last}L-{last}L"
        return Verdict(
            (
                Finding(
                    what=f"DeepNorm, {span}", values=grown["DeepNorm"], limit=FACTOR, side="below"
                ),
                Finding(
                    what=f"Post-LN, {span}", values=grown["Post-LN"], limit=FACTOR, side="above"
                ),
                Finding(
                    what=f"Post-LN's update over DeepNorm's at {last}L-{last}L",
                    values=ratios(deepest["Post-LN"], deepest["DeepNorm"]),
                    limit=1.0,
                    side="above",
                ),
            )
        )

    def table(self, cells: Sequence[FinishedCell]) -> str:
        """Return the update after each number of updates."""
        header = ["scheme", "layers", *(f"after {step}" for step in self.updates)]
        rows = [
            [line, f"{layers}L-{layers}L", *self._spreads(cells, line, layers)]
            for line, layers in product(SCHEMES, self.depths)
        ]
        title = "Model update of the decoder's output, root mean square; median over the seeds [lowest, highest]"
        return f"{title}\n\n{markdown(header, rows)}"

    def draw(self, cells: Sequence[FinishedCell]) -> Figure:
        """Return a panel per scheme over the updates, as the paper has them, and one over depth."""
        figure = Figure(figsize=(11, 4), layout="constrained")
        *over_updates, over_depth = figure.subplots(1, 3)
        over_updates[1].sharey(
            over_updates[0]
        )  # before anything is drawn, so that both are in view
        for axes, line in zip(over_updates, SCHEMES, strict=True):
            for colour, layers in zip(_shades(len(self.depths)), self.depths, strict=True):
                points = {s: self._values(cells, line, layers, s) for s in self.updates}
                draw_spread(axes, points, colour=colour, label=f"{layers}L-{layers}L")
            finish_axes(axes, title=line, x="updates", y="model update", log="xy")
        over_updates[0].legend(frameon=False, fontsize=8)
        for colour, line in zip(COLOURS, SCHEMES, strict=False):
            points = {n: self._values(cells, line, n, self.updates[-1]) for n in self.depths}
            draw_spread(over_depth, points, colour=colour, label=line)
        finish_axes(
            over_depth,
            title=f"after {self.updates[-1]} updates",
            x="layers per stack",
            y="model update",
            log="xy",
        )
        over_depth.legend(frameon=False, fontsize=8)
        return figure

    def _at(self, step: int) -> Read:
        return lambda cell: cell.value("update", step)

    def _values(
        self, cells: Sequence[FinishedCell], line: str, layers: int, step: int
    ) -> list[float]:
        return over_seeds(cells, self._at(step), line=line, layers=layers)

    def _spreads(self, cells: Sequence[FinishedCell], line: str, layers: int) -> list[str]:
        return [spread(self._values(cells, line, layers, step)) for step in self.updates]


def _shades(number: int) -> list[str]:
    """Return that many blues, from light to dark."""
    shades = [0.75 - 0.75 * place / max(number - 1, 1) for place in range(number)]
    return [
        f"#{int(255 * s * 0.9):02x}{int(120 + 100 * s):02x}{int(178 + 60 * s):02x}" for s in shades
    ]
