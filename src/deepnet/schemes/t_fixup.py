"""No norms: weights start so small that Adam needs neither norm nor warm-up.

    x <- x + f(x);   gains on v, out, fc1 and fc2: encoder 0.67 N^(-1/4), decoder (9 M)^(-1/4);   q and k 1/sqrt(2)
    embeddings N(0, 1/d) times (9 N)^(-1/4) of the encoder, (9 M)^(-1/4) of the decoder

Source: Huang et al., Improving Transformer Optimization Through Better Initialization (ICML 2020), and the authors'
code, which train without warm-up, at 5e-4 from the first update.
Cost: post_ln's parameters less all norms. Nothing bounds x: beware of fp16.
Differs: with one matrix for all embeddings the authors' code takes the encoder's factor and skips the decoder's; here
that is refused where the two differ (N is not M). A vocabulary tied to the decoder's embedding is scaled with it, as
there; an untied one is not. All biases start at 0 and a gate (SwiGLU) with gain 1. Single stacks take the encoder's or
the decoder's constants, which the paper does not derive for them: ours.
"""

from dataclasses import dataclass
from typing import ClassVar

from deepnet.schemes.base import (
    Change,
    Ends,
    Init,
    ResidualScheme,
    Site,
    SitePlan,
    StackContext,
    embedding_init,
    glorot,
)


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """No norms and no warm-up: weights and embeddings that start small, by depth."""

    equation: ClassVar[str] = "x <- x + f(x), small gains by depth"
    source: ClassVar[str] = "Huang et al. 2020, ICML"
    changes: ClassVar[Change] = "init"
    grew_out_of: ClassVar[tuple[str, ...]] = ("r_fixup",)
    warmup: ClassVar[bool] = False
    folds_to: ClassVar[str | None] = "no_norm"

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a site without norms whose gain falls with the depth of its stack."""
        gain = 0.67 * context.encoder_layers**-0.25 if site.stack == "encoder" else _factor(context)
        draws = glorot(gain, qk_gain=0.5**0.5, kind="xavier_uniform")
        return SitePlan(branch=site.kind, init=draws)

    def ends(self, context: StackContext) -> Ends:
        """Return ends with scaled embeddings and no final norm."""
        draws = embedding_init(context)
        scaled = Init("normal", _factor(context) * context.d_model**-0.5)
        draws["embedding"] = scaled
        if context.tie_embeddings != "none":
            draws["vocabulary"] = scaled
        return Ends(init=draws, fixes=("rows", "std"))


def _factor(context: StackContext) -> float:
    """Return (9 L)^(-1/4) of a stack of L layers."""
    factor: float = (9.0 * context.num_layers) ** -0.25
    return factor
