"""Norms on queries, keys and values instead of attention's input, and one norm that feeds both branch and skip of the
feed-forward site.

    h = x + W_o attention(N_q(q), N_k(k), N_v(v)),   n = LN(h),   x <- n + FFN(n)
    first_pre_norm: the first layer's attention reads LN(x) besides, and x <- h + FFN(LN(h))

Source: Zhuo et al., HybridNorm, arXiv 2503.04598, section 3, and the authors' code; HybridNorm* is `first_pre_norm`.
Cost: three norms of a head's size per attention site, shared by its heads; one per feed-forward site, one at the end.
Differs: Megatron's draw N(0, 0.02^2), out and fc2 divided by sqrt(2L), is replaced by Glorot with the same division,
which does not depend on a reference width. With rotary positions the norms come before the turn, as in the code.
"""

from dataclasses import dataclass
from typing import ClassVar

from deepnet.schemes.base import (
    Architecture,
    Change,
    Init,
    Norm,
    ResidualScheme,
    Role,
    Site,
    SitePlan,
    StackContext,
    glorot,
)


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Norms on queries, keys and values, and a feed-forward site whose norm feeds both branch and skip."""

    equation: ClassVar[str] = "h = x + attention(N(q), N(k), N(v)), x <- LN(h) + FFN(LN(h))"
    source: ClassVar[str] = "Zhuo et al. 2025, arXiv 2503.04598"
    changes: ClassVar[Change] = "norm"
    grew_out_of: ClassVar[tuple[str, ...]] = ("post_ln", "pre_ln")
    architectures: ClassVar[tuple[Architecture, ...]] = ("decoder_only",)

    first_pre_norm: bool = False
    """HybridNorm*: the first layer's attention and feed-forward sites are pre-norm."""

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return an attention site normed inside, or a feed-forward site normed for branch and skip."""
        norm = context.norm()
        pre_norm = self.first_pre_norm and site.layer == 1
        if site.kind == "ffn":
            return SitePlan(
                branch=site.kind,
                pre=norm,
                skip_from="raw" if pre_norm else "normed",
                init=_draws(context),
            )
        return SitePlan(
            branch=site.kind,
            pre=norm if pre_norm else None,
            inner_norms={"q": norm, "k": norm, "v": norm},
            init=_draws(context),
        )

    def final_norm(self, context: StackContext) -> Norm:
        """Return the model's own norm."""
        return context.norm()


def _draws(context: StackContext) -> dict[Role, Init]:
    """Return Glorot draws, those of out and fc2 divided by sqrt(2L)."""
    last = Init("xavier_normal", (2.0 * context.num_layers) ** -0.5)
    return glorot() | {"out": last, "fc2": last}
