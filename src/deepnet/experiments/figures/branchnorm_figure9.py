"""BranchNorm, figure 9: activations of the feed-forwards and how many are zero, in DeepNorm and BranchNorm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from deepnet.experiments.base import PAPER_SIZE
from deepnet.experiments.grids import ACTIVE, Grid, Quantity, Rivals


@dataclass(frozen=True, kw_only=True)
class Study(Grid):
    """Both schemes at one depth, trained until the loss is well below that of frequencies."""

    claim: ClassVar[str] = (
        "More of BranchNorm's feed-forward activations are not zero than of DeepNorm's"
    )
    source: ClassVar[str] = "Liu et al. 2023, BranchNorm, arXiv 2305.02790, figure 9"
    comparable: ClassVar[str] = (
        "The paper counts the activations of trained models that are not zero of width 512 after 100,000 updates and "
        "takes them for redundancy. Here: 18L-18L of width 64, 500 updates, branches that grow in over 20 of them, "
        "valid sentences of German to English everyday speech. The figure itself was not at hand: the claim is our "
        "reading of what the paper says of redundant parameters."
    )
    hours: ClassVar[str] = "4 minutes of two threads, estimated from DeepNet's figure 3"
    full_hours: ClassVar[str] = "half a day on a card, estimated at 5 ms a layer and update"

    quantity: Quantity = ACTIVE
    sentences: int = 64
    updates: tuple[int, ...] = (100, 200, 300, 400, 500)
    lines: Mapping[str, Sequence[str]] = field(
        default_factory=lambda: {
            "DeepNorm": ("scheme.name=deepnorm",),
            "BranchNorm": ("scheme.name=branchnorm", "scheme.T=20"),
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
        """Return BranchNorm above DeepNorm at every depth."""
        return [Rivals(of="BranchNorm", to="DeepNorm", layers=n, side="above") for n in self.depths]
