"""A Post-LN in the lower layers and a Pre-LN above them.

    x <- LN(x + f(x)) in layers l <= floor(ratio * L),   x <- x + f(LN(x)) above,   a norm at the end of each stack

Source: Li, Yin and Liu, Mix-LN, arXiv 2412.13795.
Cost: one norm per site and one per stack, no extra parameters.
Differs: weights start Glorot normal with gain 1 and biases 0, as everywhere here; the source has N(0, 0.02) and
root-mean-square norms (model.norm). It has single stacks; each stack of an encoder-decoder counting its own is ours.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from deepnet.errors import ConfigError
from deepnet.schemes.base import Change, Norm, ResidualScheme, Site, SitePlan, StackContext, glorot


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Post-LN in the lowest layers and Pre-LN above them."""

    equation: ClassVar[str] = "x <- LN(x + f(x)) in the lowest quarter, x + f(LN(x)) above"
    source: ClassVar[str] = "Li et al. 2024, arXiv 2412.13795"
    changes: ClassVar[Change] = "norm"
    grew_out_of: ClassVar[tuple[str, ...]] = ("post_ln", "pre_ln")

    ratio: float = 0.25
    """The share of a stack's layers, from the bottom, that are Post-LN."""

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise ConfigError(f"ratio is {self.ratio}; expected a share of the layers, 0 to 1")

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a post-norm site in the lower layers and a pre-norm site above."""
        # rounded first: 0.29 * 100 is a little less than 29 in floating point
        post_layers = math.floor(round(self.ratio * context.num_layers, 9))
        if site.layer <= post_layers:
            return SitePlan(branch=site.kind, post=context.norm(), init=glorot())
        return SitePlan(branch=site.kind, pre=context.norm(), init=glorot())

    def final_norm(self, context: StackContext) -> Norm:
        """Return the model's own norm."""
        return context.norm()
