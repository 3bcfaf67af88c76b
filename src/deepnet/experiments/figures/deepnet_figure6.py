"""DeepNet, figure 6: what depth does to Post-LN, Pre-LN and DeepNorm."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Self

from deepnet.experiments.base import PAPER_SIZE
from deepnet.experiments.grids import Grid, Rivals

LEVEL = 1.02
"""How far perplexity may rise from one depth to the next and still not count as a loss."""


@dataclass(frozen=True, kw_only=True)
class Study(Grid):
    """Three schemes at three depths."""

    claim: ClassVar[str] = (
        "DeepNorm loses nothing with depth from 6L-6L to 50L-50L, and is below Post-LN at 18L-18L and deeper"
    )
    source: ClassVar[str] = "Wang et al. 2022, DeepNet, arXiv 2203.00555, section 5 and figure 6"
    comparable: ClassVar[str] = (
        "The paper trains 10L-10L to 100L-100L of width 512 on IWSLT-14 for 8,000 updates and compares BLEU. Here: "
        "6L-6L to 50L-50L of width 64, 300 updates, loss in place of BLEU, on German to English sentences of everyday "
        "speech. What a deeper model gains in the end 300 updates cannot show; that it loses nothing, they can. "
        "Nothing is perplexity within two hundredths, which is ours. The figure itself was not at hand."
    )
    hours: ClassVar[str] = "13 minutes of two threads, estimated from DeepNet's figure 3"
    full_hours: ClassVar[str] = "two days on a card, estimated at 5 ms a layer and update"

    depths: tuple[int, ...] = (6, 18, 50)
    lines: Mapping[str, Sequence[str]] = field(
        default_factory=lambda: {
            "Post-LN": ("scheme.name=post_ln",),
            "Pre-LN": ("scheme.name=pre_ln",),
            "DeepNorm": ("scheme.name=deepnorm",),
        }
    )

    @classmethod
    def full(cls) -> Self:
        """Return ten depths of the paper's width, rate, batch and 8,000 updates."""
        return cls(
            depths=tuple(range(10, 101, 10)),
            updates=(1000, 2000, 4000, 8000),
            schedule=(),
            settings=(*PAPER_SIZE, "model.dropout=0.4"),
        )

    def rivals(self) -> Sequence[Rivals]:
        """Return DeepNorm no higher at each depth than at the one before, and below Post-LN but at the first."""
        deeper = [
            Rivals(of="DeepNorm", to="DeepNorm", layers=deep, to_layers=shallow, limit=LEVEL)
            for shallow, deep in pairwise(self.depths)
        ]
        return [*deeper, *(Rivals(of="DeepNorm", to="Post-LN", layers=n) for n in self.depths[1:])]
