"""Pre-LN with a norm on attention's output, a trained scale per head, and a norm after the activation.

    x <- x + LN(W_o concat_i(h_i head_i(LN(x)))),   x <- r (.) x + W_2 LN(act(W_1 LN(x)))

Source: Shleifer et al., NormFormer, arXiv 2110.09456, section 2 and figure 1; r is its ResScale, for small models.
Cost: as pre_ln and two norms per layer, one of them as wide as the hidden layer, one number per head, d more with r.
Differs: the heads are scaled before W_o, as in the paper; fairseq scales groups of channels behind it. The paper trains
causal and masked language models; cross-attention is treated like self-attention here, which is ours.
"""

from dataclasses import dataclass
from typing import ClassVar

from deepnet.schemes.base import (
    ONE,
    Change,
    Learned,
    Norm,
    ResidualScheme,
    Site,
    SitePlan,
    StackContext,
    glorot,
)


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Pre-LN with a norm on attention's output, trained head scales and a norm after the activation."""

    equation: ClassVar[str] = "x <- x + LN(W_o(h*heads(LN(x)))), x <- x + W2 LN(act(W1 LN(x)))"
    source: ClassVar[str] = "Shleifer et al. 2021, arXiv 2110.09456"
    changes: ClassVar[Change] = "norm"
    grew_out_of: ClassVar[tuple[str, ...]] = ("pre_ln",)

    scale_residual: bool = False
    """Train a vector r on the feed-forward site's skip."""

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a pre-norm site with the branch's own extra norms and scales."""
        norm = context.norm()
        if site.kind == "ffn":
            return SitePlan(
                branch=site.kind,
                pre=norm,
                inner_norms={"activation": norm},
                skip=Learned(init=1.0, shape="vector") if self.scale_residual else ONE,
                init=glorot(),
            )
        return SitePlan(
            branch=site.kind,
            pre=norm,
            out=norm,
            head_scale=Learned(init=1.0, shape="vector"),
            init=glorot(),
        )

    def final_norm(self, context: StackContext) -> Norm:
        """Return the model's own norm."""
        return context.norm()
