"""BranchNorm, figure 4: the loss of DeepNorm and BranchNorm over the updates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from deepnet.experiments.base import PAPER_SIZE
from deepnet.experiments.grids import Grid, Rivals


@dataclass(frozen=True, kw_only=True)
class Study(Grid):
    """DeepNorm and BranchNorm at one depth, for longer."""

    claim: ClassVar[str] = "BranchNorm ends with the lower loss, as DeepNorm stays undertrained"
    source: ClassVar[str] = "Liu et al. 2023, BranchNorm, arXiv 2305.02790, abstract and figure 4"
    comparable: ClassVar[str] = (
        "The paper trains for 100,000 updates, of which BranchNorm's branches take 4,000 to grow in. Here: 18L-18L of "
        "width 64, 1,000 updates, of which they take 40, and 100 of warm-up; German to English sentences of everyday "
        "speech, loss in place of BLEU. The figure itself was not at hand: the claim is that of the abstract."
    )
    hours: ClassVar[str] = "8 minutes of two threads, estimated from DeepNet's figure 3"
    full_hours: ClassVar[str] = "half a day on a card, estimated at 5 ms a layer and update"

    updates: tuple[int, ...] = (100, 200, 300, 400, 600, 800, 1000)
    lines: Mapping[str, Sequence[str]] = field(
        default_factory=lambda: {
            "DeepNorm": ("scheme.name=deepnorm",),
            "BranchNorm": ("scheme.name=branchnorm", "scheme.T=40"),
        }
    )

    @classmethod
    def full(cls) -> Self:
        """Return the paper's width, rate, batch and growth, and 20,000 updates."""
        return cls(
            updates=(1000, 2000, 5000, 10000, 20000),
            schedule=(),
            settings=(*PAPER_SIZE, "model.dropout=0.4"),
            lines={
                "DeepNorm": ("scheme.name=deepnorm",),
                "BranchNorm": ("scheme.name=branchnorm",),
            },
        )

    def rivals(self) -> Sequence[Rivals]:
        """Return BranchNorm below DeepNorm at every depth."""
        return [Rivals(of="BranchNorm", to="DeepNorm", layers=n) for n in self.depths]
