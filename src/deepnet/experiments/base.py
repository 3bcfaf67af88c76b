"""The contract of an experiment: what a paper claims, the training runs that ask it, and what their numbers say."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Self

from matplotlib.figure import Figure

from deepnet.experiments.measures import Measure
from deepnet.experiments.verdicts import Verdict
from deepnet.pipeline.recipe import Recipe, load_recipe


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training run of a grid."""

    line: str
    """What is compared, such as "DeepNorm": a line of the picture."""
    layers: int
    """Of each stack."""
    seed: int
    updates: int
    settings: tuple[str, ...]
    """section.key=value of the recipe."""

    @property
    def name(self) -> str:
        """The name of the cell's file."""
        line = "".join(c if c.isalnum() or c in ".-" else "_" for c in self.line.lower())
        return f"{line}_{self.layers}L_seed{self.seed}"


Reading = Mapping[str, Any]
"""What was measured after one update, "step", by the names of the measures."""


@dataclass(frozen=True)
class FinishedCell:
    """A training run and what was read on its way."""

    cell: Cell
    readings: Sequence[Reading]
    stopped: str = ""
    """Why it ended early, if it did."""

    def value(self, name: str, step: int) -> float:
        """Return a number that was read after an update, NaN where there is none."""
        found = [reading[name] for reading in self.readings if reading["step"] == step]
        return float("nan") if not found or found[0] is None else float(found[0])

    def row(self, name: str, stack: str, step: int) -> list[float]:
        """Return what was read of each layer of a stack after an update, NaN where there is none."""
        found = [reading[name][stack] for reading in self.readings if reading["step"] == step]
        return [float("nan") if one is None else float(one) for one in (found[0] if found else ())]


PAPER_SIZE = (
    "model.d_model=512",
    "model.ffn_dim=2048",
    "model.num_heads=8",
    "batching.max_tokens=4096",
)
"""Width, feed-forward and heads of the papers' base models, and a card's batch, for a whole grid."""


@dataclass(frozen=True, kw_only=True)
class Experiment(ABC):
    """A paper's figure, asked again at a size that two cores run; its fields are the default grid."""

    claim: ClassVar[str]
    """What the figure is said to show, as a sentence that can fail."""
    source: ClassVar[str]
    """Paper and number of the figure."""
    comparable: ClassVar[str]
    """Why runs of this size can speak of the paper's."""
    hours: ClassVar[str]
    """How long the default grid takes, and on what."""
    full_hours: ClassVar[str]
    """How long the whole grid takes, and on what."""

    seeds: tuple[int, ...] = (1, 2, 3)
    sentences: int = 8
    """Sentences of the valid part that readings are taken on."""
    settings: tuple[str, ...] = ()
    """section.key=value of the recipe, for every cell."""

    @classmethod
    @abstractmethod
    def full(cls) -> Self:
        """Return the experiment with the whole grid, for a card."""

    @abstractmethod
    def cells(self) -> list[Cell]:
        """Return the grid, all of the first seed first."""

    @abstractmethod
    def steps(self) -> Sequence[int]:
        """Return the updates after which readings are taken; 0 is before the first."""

    @abstractmethod
    def measures(self) -> Sequence[Measure]:
        """Return what is read."""

    @abstractmethod
    def verdict(self, cells: Sequence[FinishedCell]) -> Verdict:
        """Return what the finished cells say of the claim."""

    @abstractmethod
    def table(self, cells: Sequence[FinishedCell]) -> str:
        """Return the numbers in Markdown."""

    @abstractmethod
    def draw(self, cells: Sequence[FinishedCell]) -> Figure:
        """Return the picture."""

    def recipe(self, cell: Cell) -> Recipe:
        """Return the tiny recipe with what is this cell's."""
        own = [
            f"model.encoder_layers={cell.layers}",
            f"model.decoder_layers={cell.layers}",
            f"training.max_steps={cell.updates}",
            f"training.seed={cell.seed}",
        ]
        tiny = Path(str(resources.files("deepnet.experiments") / "tiny.toml"))
        return load_recipe(tiny, [*own, *self.settings, *cell.settings])
