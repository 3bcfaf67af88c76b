"""BranchNorm, figure 6: DeepNorm and BranchNorm with a shorter warm-up and with a larger rate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import ClassVar, Self

from deepnet.experiments.base import PAPER_SIZE
from deepnet.experiments.grids import Grid, Rivals

SCHEMES = {"DeepNorm": ("scheme.name=deepnorm",), "BranchNorm": ("scheme.name=branchnorm",)}
HARDER = {
    "usual": (),
    "short warm-up": ("schedule.warmup_steps=10",),
    "rate x3": ("optimizer.lr=3e-3",),
}
LONG = {
    "usual": (),
    "short warm-up": ("schedule.warmup_steps=100",),
    "rate x3": ("optimizer.lr=1.5e-3",),
}


def _lines(harder: Mapping[str, Sequence[str]], growth: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return both schemes with each of the settings; `growth` is BranchNorm's alone."""
    return {
        f"{scheme}, {name}": (*own, *(growth if scheme == "BranchNorm" else ()), *settings)
        for (name, settings), (scheme, own) in product(harder.items(), SCHEMES.items())
    }


@dataclass(frozen=True, kw_only=True)
class Study(Grid):
    """Both schemes at one depth: as usual, with a tenth of the warm-up, and at three times the rate."""

    claim: ClassVar[str] = (
        "With a shorter warm-up and with a larger rate BranchNorm ends with the lower loss than DeepNorm"
    )
    source: ClassVar[str] = "Liu et al. 2023, BranchNorm, arXiv 2305.02790, figure 6"
    comparable: ClassVar[str] = (
        "The paper varies warm-up (100, 1,000, 4,000 updates) and rate (5e-4 to 1.5e-3) at 100L-100L and more of width "
        "512. Here: 50L-50L of width 64, warm-up 100 and 10 of 200 updates, rates of 1e-3 and 3e-3, branches that grow "
        "in over 8 updates, German to English sentences of everyday speech, loss in place of BLEU. The figure itself "
        "was not at hand."
    )
    hours: ClassVar[str] = "12 minutes of two threads, estimated from DeepNet's figure 3"
    full_hours: ClassVar[str] = "two days on a card, estimated at 5 ms a layer and update"

    depths: tuple[int, ...] = (50,)
    updates: tuple[int, ...] = (50, 100, 200)
    lines: Mapping[str, Sequence[str]] = field(
        default_factory=lambda: _lines(HARDER, ("scheme.T=8",))
    )

    @classmethod
    def full(cls) -> Self:
        """Return 100L-100L of the paper's width, rate and batch, and 10,000 updates."""
        return cls(
            depths=(100,),
            updates=(1000, 2000, 5000, 10000),
            schedule=(),
            settings=(*PAPER_SIZE, "model.dropout=0.4"),
            lines=_lines(LONG, ()),
        )

    def rivals(self) -> Sequence[Rivals]:
        """Return BranchNorm below DeepNorm wherever it is made harder."""
        return [
            Rivals(of=f"BranchNorm, {name}", to=f"DeepNorm, {name}", layers=n)
            for n, name in product(self.depths, list(HARDER)[1:])
        ]
