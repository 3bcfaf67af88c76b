"""Post-LN whose lower layers start smaller: the DeepNet paper's probe of what makes Post-LN fail.

    x <- LN(x + f(x)),   every matrix of layer l drawn with gain 1 / k_l,   k_l = N - l + 1

Source: Wang et al., DeepNet, arXiv 2203.00555, section 3.
Cost: as post_ln.
Differs: the paper shows one matrix as an example; every matrix of the layer, q and k included, is scaled here, and each
stack of an encoder-decoder counts its own depth.
"""

from dataclasses import dataclass
from typing import ClassVar

from deepnet.schemes.base import Change, ResidualScheme, Site, SitePlan, StackContext, glorot


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Post-LN with every matrix of layer l divided by N - l + 1 at the start, so that lower layers start smaller."""

    equation: ClassVar[str] = "x <- LN(x + f(x)), gain 1/(N-l+1) in layer l"
    source: ClassVar[str] = "Wang et al. 2022, arXiv 2203.00555, section 3"
    changes: ClassVar[Change] = "init"
    grew_out_of: ClassVar[tuple[str, ...]] = ("post_ln",)
    folds_to: ClassVar[str | None] = "post_ln"

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a post-norm site whose gain is one over the number of layers from here to the top."""
        gain = 1.0 / (context.num_layers - site.layer + 1)
        draws = glorot(gain, qk_gain=gain, gate_gain=gain)
        return SitePlan(branch=site.kind, post=context.norm(), init=draws)
