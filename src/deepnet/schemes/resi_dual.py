"""Two streams: a Post-LN that branches read, and the plain sum of what they return, normed once at the end.

    x_1 = d_1 = embedding;   y = f(x),   x <- LN(x + y),   d <- d + y;   output x + LN(d)

Source: Xie et al., ResiDual, arXiv 2304.14802, equation 5, for encoder and decoder; single stacks are ours.
Cost: as post_ln, one norm per stack and a second tensor of the stream's size.
Differs: nothing. `sum_scale` multiplies d_1 and every y of the sum, so that fp16 does not overflow in deep stacks; the
function stays the same up to the norm's eps.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    Change,
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


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Two streams: a Post-LN that branches read, and the sum of all branches, normed once at the end."""

    equation: ClassVar[str] = "x <- LN(x + f(x)), d <- d + f(x), output x + LN(d)"
    source: ClassVar[str] = "Xie et al. 2023, arXiv 2304.14802, equation 5"
    changes: ClassVar[Change] = "stream"
    grew_out_of: ClassVar[tuple[str, ...]] = ("post_ln", "pre_ln")

    sum_scale: float = 1.0
    """Constant by which the sum is kept smaller (0.1, say, in fp16)."""

    def __post_init__(self) -> None:
        if self.sum_scale <= 0:
            raise ConfigError(f"sum_scale is {self.sum_scale}; expected a positive number")

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a post-norm site."""
        return SitePlan(branch=site.kind, post=context.norm(), init=glorot())

    def final_norm(self, context: StackContext) -> Norm:
        """Return the norm of the sum."""
        return context.norm()

    def stream(self, context: StackContext) -> Stream:
        """Return the two streams."""
        return _Dual(self.sum_scale)


class _Dual(Stream):
    """The state is (x, d), both [B, T, D]."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def open(self, x: "Tensor") -> "tuple[Tensor, Tensor]":
        return x, self.scale * x

    def read(
        self, state: "tuple[Tensor, Tensor]", site: ResidualSite
    ) -> "tuple[Tensor, tuple[Tensor, Tensor]]":
        entered, skip = site.enter(state[0])
        return entered, (skip, state[1])

    def write(
        self,
        state: "tuple[Tensor, Tensor]",
        carry: "tuple[Tensor, Tensor]",
        site: ResidualSite,
        y: "Tensor",
    ) -> "tuple[Tensor, Tensor]":
        y, (skip, d) = site.leave(y), carry
        return site.add(skip, y), d.add(y, alpha=self.scale)

    def close(self, state: "tuple[Tensor, Tensor]", ends: Any) -> "Tensor":
        x, d = state
        return x + super().close(d, ends)

    def peek(self, state: "tuple[Tensor, Tensor]") -> "Tensor":
        return state[0]
