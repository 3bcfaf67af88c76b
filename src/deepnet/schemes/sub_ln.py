"""Pre-LN with a second norm inside each branch and weights that start larger with depth (Magneto).

    x <- x + W_o LN(heads(LN(x))),   x <- x + W_2 LN(act(W_1 LN(x)))
    gain g on v, out, fc1 and fc2, gain 1 on q and k; one stack of L layers: g = sqrt(ln 2L)
    encoder-decoder: encoder g = sqrt(ln(3M) ln(2N) / 3), decoder g = sqrt(ln 3M)

Source: Wang et al., Foundation Transformers (Magneto), arXiv 2210.06423, sections 2 and 3; torchscale for
cross-attention, which is a plain pre-norm site there: no inner norm, gain 1.
Cost: as pre_ln and one norm per self-attention and feed-forward site, the latter as wide as the hidden layer.
Differs: biases start at 0 and are not multiplied by g, which torchscale does; a gate (SwiGLU) has gain 1.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from deepnet.schemes.base import Change, Norm, ResidualScheme, Site, SitePlan, StackContext, glorot


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Pre-LN with a second norm before the last matrix of each branch, and gains that grow with depth."""

    equation: ClassVar[str] = "x <- x + W2 LN(act(W1 LN(x))), gain g on v, out, fc1, fc2"
    source: ClassVar[str] = "Wang et al. 2022, arXiv 2210.06423"
    changes: ClassVar[Change] = "norm"
    grew_out_of: ClassVar[tuple[str, ...]] = ("pre_ln", "deepnorm")

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a pre-norm site with an inner norm and gain g; cross-attention has neither."""
        norm = context.norm()
        if site.kind == "cross":
            return SitePlan(branch=site.kind, pre=norm, init=glorot())
        return SitePlan(
            branch=site.kind,
            pre=norm,
            inner_norms={"activation" if site.kind == "ffn" else "heads": norm},
            init=glorot(_gain(context)),
        )

    def final_norm(self, context: StackContext) -> Norm:
        """Return the model's own norm."""
        return context.norm()


def _gain(context: StackContext) -> float:
    """Return g of this stack (Magneto, table 2)."""
    if context.architecture != "encoder_decoder":
        return math.sqrt(math.log(2 * context.num_layers))
    decoder = math.log(3 * context.decoder_layers)
    if context.stack == "decoder":
        return math.sqrt(decoder)
    return math.sqrt(decoder * math.log(2 * context.encoder_layers) / 3)
