"""The original Transformer: a norm after every addition.

    x <- LN(x + f(x))

Source: Vaswani et al., Attention Is All You Need, arXiv 1706.03762, section 3.1.
Cost: one norm per site, no extra parameters.
Differs: weights start Glorot normal with gain 1 and biases 0, as the DeepNet paper's baseline.
"""

from dataclasses import dataclass
from typing import ClassVar

from deepnet.schemes.base import Change, ResidualScheme, Site, SitePlan, StackContext, glorot


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """A norm after every addition, as in the original Transformer; needs warm-up and diverges when deep."""

    equation: ClassVar[str] = "x <- LN(x + f(x))"
    source: ClassVar[str] = "Vaswani et al. 2017, arXiv 1706.03762"
    changes: ClassVar[Change] = "norm"
    folds_to: ClassVar[str | None] = "post_ln"

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a post-norm site with unit scales and gain 1."""
        return SitePlan(branch=site.kind, post=context.norm(), init=glorot())
