"""Another scheme whose stream is scaled down by trained gates that leave the gradient as it was.

    G(u) = u - silu(g) sg(u),   sg stops the gradient, g one trained number per layer, 0 at the start: G(u) = u
    norms before the branches: x <- G(x + f(LN(x)));   norms after the additions: x <- LN(alpha * G(x) + f(x))

Source: Chen et al., Gradient-Preserving Activation Scaling, arXiv 2506.22049, and the authors' code, for decoders.
Cost: one parameter per layer, used at all its sites.
Differs: deepnorm keeps its gain beta, which the authors' code drops with GPAS. mix_ln's ratio is its default, and
peri_ln, their Sandwich, also norms its embedding. G(x) + G(y) is computed for G(x + y). Their clipping of the gates'
gradients at 0.01 is left to the optimiser. An encoder-decoder is ours. With silu(g) = s a norm after the addition reads
the skip alpha (1 - s), which folds; with norms before the branches it folds only to norms whose eps is divided by the
square of the product of 1 - s so far, which no plain model of one eps has.
"""

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, ClassVar, Literal

from torch.nn import functional as F

from deepnet.schemes.base import (
    Change,
    Constant,
    Ends,
    Learned,
    ResidualScheme,
    Site,
    SitePlan,
    StackContext,
)
from deepnet.schemes.catalogue import load_scheme

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Another scheme whose stream is scaled down by a trained gate per layer that leaves the gradient as it was."""

    equation: ClassVar[str] = "x <- G(x + f(LN(x))), G(u) = u - silu(g)*sg(u)"
    source: ClassVar[str] = "Chen et al. 2025, arXiv 2506.22049"
    changes: ClassVar[Change] = "scale"
    grew_out_of: ClassVar[tuple[str, ...]] = ("pre_ln",)

    base: Literal[
        "pre_ln", "peri_ln", "layernorm_scaling", "mix_ln", "post_ln", "deepnorm"
    ] = "pre_ln"  # fmt: skip
    """The scheme whose stream is gated."""

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return the base's site, gated on its skip where a norm follows, else on the skip and the branch alike."""
        plan = load_scheme(self.base).site(context, site)
        assert isinstance(plan.skip, Constant)
        gate = Learned(
            init=0.0,
            scope="layer",
            name="gate",
            transform=_kept(plan.skip.value),
            stops_gradient=True,
        )
        if plan.post is not None:
            return replace(plan, skip=gate)
        return replace(plan, skip=gate, branch_scale=gate)

    def ends(self, context: StackContext) -> Ends:
        """Return the base's ends."""
        return load_scheme(self.base).ends(context)


@cache
def _kept(skip: float) -> "Callable[[Tensor], Tensor]":
    """Return what leaves 1 - silu(g) of such a skip: one function for all layers, which then share compiled code."""
    return partial(_leave, skip)


def _leave(skip: float, gate: "Tensor") -> "Tensor":
    return skip * (1.0 - F.silu(gate))
