"""A Pre-LN whose norms' outputs shrink with the layer, so that the variance of x grows more slowly with depth.

    x <- x + f(LN(x) / sqrt(l)),   l the layer, from 1, the same at all its sites;   an unscaled norm at the end

Source: Sun et al., The Curse of Depth in Large Language Models, arXiv 2502.05795.
Cost: one norm per site and one per stack, no extra parameters.
Differs: weights start Glorot normal with gain 1 and biases 0, as everywhere here; the source has N(0, 0.02), and warns
that an initialisation scaled by depth cancels the benefit. It has single stacks; each stack of an encoder-decoder
counting its own layers is ours.
"""

from dataclasses import dataclass
from typing import ClassVar

from deepnet.schemes.base import Change, Norm, ResidualScheme, Site, SitePlan, StackContext, glorot


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Pre-LN with every norm's output divided by the square root of its layer."""

    equation: ClassVar[str] = "x <- x + f(LN(x)/sqrt(l))"
    source: ClassVar[str] = "Sun et al. 2025, arXiv 2502.05795"
    changes: ClassVar[Change] = "scale"
    grew_out_of: ClassVar[tuple[str, ...]] = ("pre_ln",)
    folds_to: ClassVar[str | None] = "pre_ln"

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a pre-norm site whose norm carries the layer's factor."""
        norm = context.norm(multiplier=site.layer**-0.5)
        return SitePlan(branch=site.kind, pre=norm, init=glorot())

    def final_norm(self, context: StackContext) -> Norm:
        """Return an unscaled norm."""
        return context.norm()
