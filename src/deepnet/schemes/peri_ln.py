"""A norm before every branch and one after it, before the addition.

    x <- x + LN_out(f(LN_in(x))),   a norm after the embedding and one at the end of each stack

Source: Kim et al., Peri-LN, arXiv 2502.02732.
Cost: two norms per site and two per stack.
Differs: weights start Glorot normal with gain 1 and biases 0, as everywhere here; the source has N(0, 0.02). The
embedding's norm comes after added positions, of which the source, with rotary ones, has none. It has decoder-only
models; the other architectures are ours.
"""

from dataclasses import dataclass
from typing import ClassVar

from deepnet.schemes.base import (
    Change,
    Ends,
    ResidualScheme,
    Site,
    SitePlan,
    StackContext,
    embedding_init,
    glorot,
)


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """A norm before every branch and one on its output, before the addition."""

    equation: ClassVar[str] = "x <- x + LN(f(LN(x)))"
    source: ClassVar[str] = "Kim et al. 2025, arXiv 2502.02732"
    changes: ClassVar[Change] = "norm"
    grew_out_of: ClassVar[tuple[str, ...]] = ("pre_ln",)

    embedding_norm: bool = True
    """A norm after the embedding, which the source recommends."""

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a site with a norm on either side of its branch."""
        return SitePlan(branch=site.kind, pre=context.norm(), out=context.norm(), init=glorot())

    def ends(self, context: StackContext) -> Ends:
        """Return ends with a final norm and, if wanted, one after the embedding."""
        first = context.norm() if self.embedding_norm else None
        return Ends(embedding_norm=first, final=context.norm(), init=embedding_init(context))
