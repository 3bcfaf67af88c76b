"""BranchNorm, figure 7: how the branches grow in, and for how long."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from deepnet.experiments.base import PAPER_SIZE
from deepnet.experiments.grids import Grid, Rivals

WITHIN = 1.05
"""By how much perplexity may differ and still count as insensitive."""


def _lines(usual: int, others: Sequence[int], exp_rate: float) -> dict[str, Sequence[str]]:
    """Return linear growth for several T, the usual one first, and the two other laws at the usual T."""
    own = ("scheme.name=branchnorm",)
    return {
        **{f"linear, T {steps}": (*own, f"scheme.T={steps}") for steps in (usual, *others)},
        "exp": (*own, f"scheme.T={usual}", "scheme.growth=exp", f"scheme.exp_rate={exp_rate}"),
        "sigmoid": (*own, f"scheme.T={usual}", "scheme.growth=sigmoid"),
    }


@dataclass(frozen=True, kw_only=True)
class Study(Grid):
    """Six ways to grow, at one depth."""

    claim: ClassVar[str] = "BranchNorm is insensitive to how its branches grow in and for how long"
    source: ClassVar[str] = "Liu et al. 2023, BranchNorm, arXiv 2305.02790, figure 7"
    comparable: ClassVar[str] = (
        "The paper has T of 100, 400, 4,000 and 20,000 of 100,000 updates, and three laws. Here: 18L-18L of width 64, "
        "500 updates, and T of 2, 20 and 100, which are the same parts of the run (100 updates would be half of one); "
        "German to English sentences of everyday speech, loss in place of BLEU. The laws other than the linear one are "
        "ours, as the paper's are not legible. Insensitive is perplexity within a twentieth, which is ours, too. The "
        "figure itself was not at hand."
    )
    hours: ClassVar[str] = "9 minutes of two threads, estimated from DeepNet's figure 3"
    full_hours: ClassVar[str] = "two days on a card, estimated at 5 ms a layer and update"

    updates: tuple[int, ...] = (100, 200, 300, 400, 500)
    lines: Mapping[str, Sequence[str]] = field(
        default_factory=lambda: _lines(20, (2, 100), exp_rate=0.2)
    )

    @classmethod
    def full(cls) -> Self:
        """Return the paper's T, width, rate and batch, and 40,000 updates."""
        return cls(
            updates=(1000, 5000, 10000, 20000, 40000),
            schedule=(),
            settings=(*PAPER_SIZE, "model.dropout=0.4"),
            lines=_lines(4000, (100, 400, 20000), exp_rate=1e-3),
        )

    def rivals(self) -> Sequence[Rivals]:
        """Return every way within a twentieth of the usual one, on both sides."""
        usual, *others = self.lines
        return [
            Rivals(of=of, to=to, layers=n, limit=WITHIN)
            for n in self.depths
            for other in others
            for of, to in ((other, usual), (usual, other))
        ]
