"""DeepNet, figure 7: a larger rate, a larger batch, a larger width."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from deepnet.experiments.base import PAPER_SIZE
from deepnet.experiments.grids import Grid, Rivals

USUAL = "usual"


@dataclass(frozen=True, kw_only=True)
class Study(Grid):
    """DeepNorm at 18L-18L, one setting enlarged at a time."""

    claim: ClassVar[str] = (
        "DeepNorm trains with a rate, a batch and a width of two to four times the usual, each to the lower loss"
    )
    source: ClassVar[str] = "Wang et al. 2022, DeepNet, arXiv 2203.00555, section 5 and figure 7"
    comparable: ClassVar[str] = (
        "The paper has 18L-18L on WMT-17 for 30,000 updates: rates from 5e-4 to 1.5e-3, batches from 64 to 256 times "
        "4,096 tokens, widths of 512 to 1,024. Here: the same depth and the same factors (rate 1, 2 and 3 times, batch "
        "1, 2 and 4 times, width 1, 1.5 and 2 times), from 1e-3, 512 tokens and width 64, 300 updates, German to "
        "English sentences of everyday speech. The figure itself was not at hand; the lower loss is our reading of it."
    )
    hours: ClassVar[str] = "14 minutes of two threads, estimated from DeepNet's figure 3"
    full_hours: ClassVar[str] = "three days on a card, estimated at 5 ms a layer and update"

    settings: tuple[str, ...] = ("scheme.name=deepnorm",)
    lines: Mapping[str, Sequence[str]] = field(
        default_factory=lambda: {
            USUAL: (),
            "rate x2": ("optimizer.lr=2e-3",),
            "rate x3": ("optimizer.lr=3e-3",),
            "batch x2": ("batching.max_tokens=1024",),
            "batch x4": ("batching.max_tokens=2048",),
            "width x1.5": ("model.d_model=96", "model.ffn_dim=192"),
            "width x2": ("model.d_model=128", "model.ffn_dim=256"),
        }
    )

    @classmethod
    def full(cls) -> Self:
        """Return the paper's rates and widths, batches as a card has them, and 30,000 updates."""
        return cls(
            updates=(1000, 5000, 10000, 20000, 30000),
            schedule=(),
            settings=("scheme.name=deepnorm", *PAPER_SIZE, "model.dropout=0.4"),
            lines={
                USUAL: (),
                "rate x2": ("optimizer.lr=1e-3",),
                "rate x3": ("optimizer.lr=1.5e-3",),
                "batch x2": ("batching.max_tokens=8192",),
                "batch x4": ("batching.max_tokens=16384",),
                "width x1.5": ("model.d_model=768", "model.ffn_dim=3072", "model.num_heads=12"),
                "width x2": ("model.d_model=1024", "model.ffn_dim=4096", "model.num_heads=16"),
            },
        )

    def rivals(self) -> Sequence[Rivals]:
        """Return every larger setting below the usual one."""
        return [
            Rivals(of=line, to=USUAL, layers=n)
            for n in self.depths
            for line in self.lines
            if line != USUAL
        ]
