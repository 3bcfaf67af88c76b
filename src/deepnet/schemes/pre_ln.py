"""A norm before every branch, and one at the end of each stack.

    x <- x + f(LN(x))

Source: Xiong et al., On Layer Normalization in the Transformer Architecture, arXiv 2002.04745, figure 1b.
Cost: one norm per site and one per stack, no extra parameters.
Differs: weights start Glorot normal with gain 1 and biases 0, as everywhere here.
"""

from dataclasses import dataclass
from typing import ClassVar

from deepnet.schemes.base import Change, Norm, ResidualScheme, Site, SitePlan, StackContext, glorot


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """A norm before every branch and one at the end of each stack; trains at any depth, learns less per layer."""

    equation: ClassVar[str] = "x <- x + f(LN(x))"
    source: ClassVar[str] = "Xiong et al. 2020, arXiv 2002.04745"
    changes: ClassVar[Change] = "norm"
    grew_out_of: ClassVar[tuple[str, ...]] = ("post_ln",)
    folds_to: ClassVar[str | None] = "pre_ln"

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a pre-norm site with unit scales and gain 1."""
        return SitePlan(branch=site.kind, pre=context.norm(), init=glorot())

    def final_norm(self, context: StackContext) -> Norm:
        """Return a norm, without which cross-attention would read an un-normalised memory."""
        return context.norm()
