"""A Transformer without norms: what a scheme without norms is once its scales and shifts are in the weights.

    x <- x + f(x)

Source: the residual network itself; ReZero, T-Fixup and R-Fixup are ways to train it.
Cost: post_ln's parameters less all norms.
Differs: it is a target of folding, not a way to train: weights start Glorot normal with gain 1, whatever the depth.
"""

from dataclasses import dataclass
from typing import ClassVar

from deepnet.schemes.base import ResidualScheme, Site, SitePlan, StackContext, glorot


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """No norms, scales or shifts; not meant to be trained from the start."""

    equation: ClassVar[str] = "x <- x + f(x)"
    source: ClassVar[str] = "the plain residual network"

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a site that adds its branch and does nothing else."""
        return SitePlan(branch=site.kind, init=glorot())
