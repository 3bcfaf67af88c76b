"""Two streams, one normed at every site and one plain sum, read together and written by the same branches.

    x = y = embedding;   x <- LN_a(x),   r = f(LN_c(x + LN_b(y))),   x <- x + r / sqrt(2 l),   y <- y + r
    l is the layer, from 1; output LN_3(LN_1(x) + LN_2(y))

Source: SiameseNorm, arXiv 2602.08064, and the authors' code for vision, whose stack this is: its branches read the sum
of both streams through a norm. Per stack of an encoder-decoder, cross-attention as one more site: ours.
Cost: three norms per site and three per stack, and a second tensor of the stream's size.
Differs: nothing. The authors' language model (attention that reads g (.) x + LN_b(y), without LN_a and LN_c but with
norms of queries, keys and values) is not here.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from torch import nn

from deepnet.schemes.base import (
    Change,
    Constant,
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
    """Two streams, one normed at every site and one plain sum, that the same branches read together and write."""

    equation: ClassVar[str] = "x <- LN(x), r = f(LN(x + LN(y))), x <- x + r/sqrt(2l), y <- y + r"
    source: ClassVar[str] = "arXiv 2602.08064"
    changes: ClassVar[Change] = "stream"
    grew_out_of: ClassVar[tuple[str, ...]] = ("resi_dual",)

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a site with a norm for each stream and one for their sum."""
        return SitePlan(
            branch=site.kind,
            pre=context.norm(),
            branch_scale=Constant((2.0 * site.layer) ** -0.5),
            init=glorot(),
            extra={
                "normed": lambda: context.make_norm(context.d_model),
                "plain": lambda: context.make_norm(context.d_model),
            },
        )

    def ends(self, context: StackContext) -> Ends:
        """Return ends that add the two streams, each normed."""
        return replace(super().ends(context), merge=lambda: _Sum(context))

    def final_norm(self, context: StackContext) -> Norm:
        """Return the norm of that sum."""
        return context.norm()

    def stream(self, context: StackContext) -> Stream:
        """Return the two streams."""
        return _Siamese()


class _Sum(nn.Module):
    """LN_1(x) + LN_2(y)."""

    def __init__(self, context: StackContext) -> None:
        super().__init__()
        self.normed = context.make_norm(context.d_model)
        self.plain = context.make_norm(context.d_model)

    def forward(self, state: "State") -> "Tensor":
        """Return [B, T, D] of the two streams."""
        total: Tensor = self.normed(state[0]) + self.plain(state[1])
        return total


class _Siamese(Stream):
    """The state is (x, y), both [B, T, D]."""

    def open(self, x: "Tensor") -> "State":
        return x, x

    def read(self, state: "State", site: ResidualSite) -> "tuple[Tensor, State]":
        x, y = site.extra["normed"](state[0]), state[1]
        entered, _ = site.enter(x + site.extra["plain"](y))
        return entered, (x, y)

    def write(self, state: "State", carry: "State", site: ResidualSite, y: "Tensor") -> "State":
        added, (normed, plain) = site.leave(y), carry
        return site.add(normed, added), plain + added

    def peek(self, state: "State") -> "Tensor":
        return state[0]
