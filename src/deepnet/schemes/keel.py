"""A Post-LN whose skip is scaled up by the number of sites, with a norm before each branch as well.

    x <- LN_post(a * x + f(LN_pre(x))),   a = number of sites of the stack;   first layer: x <- x + f(LN_pre(x))

Source: Post-LayerNorm Is Back (Keel), arXiv 2601.19895, for a decoder, as told by two public implementations; we have
not read the paper's own equations.
Cost: two norms per site, one in the first layer's, none at the end.
Differs: single stacks nothing. In an encoder-decoder a is 2N in the encoder and 3M in the decoder: ours. A stack of one
layer, which would be without any norm on its stream, gets a final one.
"""

from dataclasses import dataclass
from typing import ClassVar

from deepnet.schemes.base import (
    Change,
    Constant,
    Norm,
    ResidualScheme,
    Site,
    SitePlan,
    StackContext,
    glorot,
)


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Post-LN with the skip scaled by the number of sites and a norm before each branch; the first layer is Pre-LN."""

    equation: ClassVar[str] = "x <- LN(a*x + f(LN(x))), a = number of sites"
    source: ClassVar[str] = "arXiv 2601.19895"
    changes: ClassVar[Change] = "scale"
    grew_out_of: ClassVar[tuple[str, ...]] = ("post_ln",)

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a site with both norms and the scaled skip, or a pre-norm site in the first layer."""
        norm = context.norm()
        if site.layer == 1:
            return SitePlan(branch=site.kind, pre=norm, init=glorot())
        sites = len(self.branches(context)) * context.num_layers
        return SitePlan(
            branch=site.kind, pre=norm, post=norm, skip=Constant(float(sites)), init=glorot()
        )

    def final_norm(self, context: StackContext) -> Norm | None:
        """Return a norm for a single layer; of more, the last site's norm is the stack's."""
        return context.norm() if context.num_layers == 1 else None
