"""BranchNorm, figure 1: is DeepNorm's loss above Post-LN's at the depths where Post-LN still trains?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from deepnet.experiments.base import PAPER_SIZE
from deepnet.experiments.grids import Grid, Rivals


@dataclass(frozen=True, kw_only=True)
class Study(Grid):
    """Post-LN and DeepNorm at three depths."""

    claim: ClassVar[str] = (
        "Where Post-LN trains, DeepNorm ends with the higher loss: at 6L-6L, 18L-18L and 30L-30L"
    )
    source: ClassVar[str] = "Liu et al. 2023, BranchNorm, arXiv 2305.02790, figure 1"
    comparable: ClassVar[str] = (
        "The paper compares BLEU of models of width 512 after 100,000 updates, from 6 to 30 layers. Here: the same "
        "depths at width 64, 300 updates, loss in place of BLEU, on German to English sentences of everyday speech. "
        "The figure itself was not at hand. Where Post-LN does not train at this size the claim is not about it, but "
        "nothing here knows that: the table shows it."
    )
    hours: ClassVar[str] = "10 minutes of two threads, estimated from DeepNet's figure 3"
    full_hours: ClassVar[str] = "a day on a card, estimated at 5 ms a layer and update"

    depths: tuple[int, ...] = (6, 18, 30)
    lines: Mapping[str, Sequence[str]] = field(
        default_factory=lambda: {
            "Post-LN": ("scheme.name=post_ln",),
            "DeepNorm": ("scheme.name=deepnorm",),
        }
    )

    @classmethod
    def full(cls) -> Self:
        """Return five depths of the paper's width, rate and batch."""
        return cls(
            depths=(6, 12, 18, 24, 30),
            updates=(1000, 2000, 5000, 10000, 20000),
            schedule=(),
            settings=(*PAPER_SIZE, "model.dropout=0.4"),
        )

    def rivals(self) -> Sequence[Rivals]:
        """Return DeepNorm above Post-LN at every depth."""
        return [Rivals(of="DeepNorm", to="Post-LN", layers=n, side="above") for n in self.depths]
