"""Post-LN whose last norm in each layer also gets the layer's input: the bottom-to-top connection.

    encoder: a = LN(u + SA(u)),   x = LN(u + a + FFN(a));   decoder: b = LN(a + CA(a)) between, x = LN(u + b + FFN(b))

Source: Takase et al., B2T Connection, arXiv 2206.00330, section 4.
Cost: as post_ln, and one addition per layer.
Differs: the authors' code also multiplies every matrix by L^(-1/2) (q and k included), L being the layers of the stack;
as that is another thing than the connection, here it is the option `rescale`. Single stacks: nothing.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from deepnet.schemes.base import (
    Change,
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


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Post-LN whose last norm in each layer also gets the layer's input."""

    equation: ClassVar[str] = (
        "x <- LN(x + f(x)), last site of a layer: x <- LN(u + x + f(x)), u its input"
    )
    source: ClassVar[str] = "Takase et al. 2022, arXiv 2206.00330"
    changes: ClassVar[Change] = "stream"
    grew_out_of: ClassVar[tuple[str, ...]] = ("post_ln",)

    rescale: bool = False
    """Multiply every matrix by L^(-1/2) at the start, as the authors' code does."""

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a post-norm site."""
        gain = context.num_layers**-0.5 if self.rescale else 1.0
        draws = glorot(gain, qk_gain=gain, gate_gain=gain)
        return SitePlan(branch=site.kind, post=context.norm(), init=draws)

    def stream(self, context: StackContext) -> Stream:
        """Return the stream that remembers the layer's input."""
        return _BottomToTop()


class _BottomToTop(Stream):
    """The state is (x, u): the stream and the input of the layer it is in, both [B, T, D]."""

    def open(self, x: "Tensor") -> "tuple[Tensor, Tensor]":
        return x, x

    def read(
        self, state: "tuple[Tensor, Tensor]", site: ResidualSite
    ) -> "tuple[Tensor, tuple[Tensor, Tensor]]":
        x, u = state
        entered, skip = site.enter(x)
        return entered, (skip, x if site.site.first_in_layer else u)

    def write(
        self,
        state: "tuple[Tensor, Tensor]",
        carry: "tuple[Tensor, Tensor]",
        site: ResidualSite,
        y: "Tensor",
    ) -> "tuple[Tensor, Tensor]":
        skip, u = carry
        return site(skip + u if site.site.last_in_layer else skip, y), u

    def close(self, state: "tuple[Tensor, Tensor]", ends: Any) -> "Tensor":
        return super().close(state[0], ends)

    def peek(self, state: "tuple[Tensor, Tensor]") -> "Tensor":
        return state[0]
