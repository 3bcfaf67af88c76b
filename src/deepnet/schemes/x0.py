"""Pre-LN whose layers each scale the stream and mix the embedding into it again.

    x0 = LN(embedding), x = x0;   before layer l:  x <- r_l x + z_l x0;   then x <- x + f(LN(x)) at every site

Source: the x0 switch of two public speed runs, KellerJordan/modded-nanogpt (record of 2024-11-10) and
karpathy/nanochat, for a decoder; encoders and, per stack, encoder-decoders are ours.
Cost: as pre_ln, one norm and two numbers per layer more per stack, and a second tensor of the stream's size.
Differs: the norm of the embedding is the model's own, where both sources have one without a gain. nanochat trains r and
z at Adam rates of 0.005 and 0.5; here they learn at the rate of everything else, and are not decayed.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import nn

from deepnet.schemes.base import (
    Change,
    Ends,
    Norm,
    ResidualScheme,
    ResidualSite,
    Site,
    SitePlan,
    StackContext,
    Stream,
    glorot,
)

if TYPE_CHECKING:
    from torch import Tensor

    State = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Pre-LN layers that each scale the stream and mix the normed embedding into it again."""

    equation: ClassVar[str] = "x <- r_l x + z_l x0 before layer l, x <- x + f(LN(x))"
    source: ClassVar[str] = "KellerJordan/modded-nanogpt 2024, karpathy/nanochat"
    changes: ClassVar[Change] = "stream"
    grew_out_of: ClassVar[tuple[str, ...]] = ("pre_ln",)

    start: Literal["neutral", "nanochat"] = "neutral"
    """Where r and z start: at 1 and 0, which is Pre-LN, or as in nanochat (1.15 to 1.05 and 0.20 to 0.05, by layer)."""

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a pre-norm site; the first of a layer holds its two numbers."""
        r, z = self._start(context, site)
        return SitePlan(
            branch=site.kind,
            pre=context.norm(),
            init=glorot(),
            extra={"mix": lambda: _Mix(r, z)} if site.first_in_layer else {},
        )

    def _start(self, context: StackContext, site: Site) -> tuple[float, float]:
        if self.start == "neutral":
            return 1.0, 0.0
        share = (site.layer - 1) / max(1, context.num_layers - 1)
        return 1.15 - 0.10 * share, 0.20 - 0.15 * share

    def ends(self, context: StackContext) -> Ends:
        """Return ends with a norm after the embedding."""
        return replace(super().ends(context), embedding_norm=context.norm())

    def final_norm(self, context: StackContext) -> Norm:
        """Return the model's own norm."""
        return context.norm()

    def stream(self, context: StackContext) -> Stream:
        """Return the stream that remembers the embedding."""
        return _WithEmbedding()


class _Mix(nn.Module):
    """r x + z x0."""

    def __init__(self, r: float, z: float) -> None:
        super().__init__()
        self.start = r, z
        self.r = nn.Parameter(torch.empty(1))
        self.z = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set both numbers to their start."""
        for parameter, value in zip((self.r, self.z), self.start, strict=True):
            nn.init.constant_(parameter, value)

    def forward(self, x: "Tensor", x0: "Tensor") -> "Tensor":
        """Return [B, T, D] of two of these."""
        return self.r * x + self.z * x0


class _WithEmbedding(Stream):
    """The state is (x, x0), both [B, T, D]."""

    def open(self, x: "Tensor") -> "State":
        return x, x

    def read(self, state: "State", site: ResidualSite) -> "tuple[Tensor, Tensor]":
        x, x0 = state
        return site.enter(site.extra["mix"](x, x0) if "mix" in site.extra else x)

    def write(self, state: "State", carry: "Tensor", site: ResidualSite, y: "Tensor") -> "State":
        return site(carry, y), state[1]

    def close(self, state: "State", ends: Any) -> "Tensor":
        return super().close(state[0], ends)

    def peek(self, state: "State") -> "Tensor":
        return state[0]
