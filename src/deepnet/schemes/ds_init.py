"""A Post-LN whose higher layers start smaller, with self- and cross-attention of the decoder merged on request.

    x <- LN(x + f(x)),   every matrix of layer l from U(-g, g) / l^power,   g = sqrt(6 / (fan_in + fan_out))
    merged:  f(x) = W_o (concat_h softmax(q k_mem^T) v_mem + mean of v_own so far),   one W_v for memory and own input

Source: Zhang, Titov and Sennrich, Improving Deep Transformer with Depth-Scaled Initialization and Merged Attention,
EMNLP 2019, arXiv 1908.11365, and the first author's code.
Cost: as post_ln; merged attention saves a site of q, k, v, out and a norm in every decoder layer.
Differs: power 0.5 is the paper's; its code hands l^(-1/2) to an initialiser that scales the variance, which gives power
0.25, and draws q, k and v as one matrix, another factor 1/sqrt(2) that is not followed here. The paper's further factor
in (0, 1] is 1. Depth-scaled initialisation of a single stack is ours; merged attention needs an encoder.
"""

from dataclasses import dataclass
from typing import ClassVar

from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    Branch,
    Change,
    ResidualScheme,
    Site,
    SitePlan,
    StackContext,
    glorot,
)


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Post-LN with every matrix of layer l divided by a power of l at the start."""

    equation: ClassVar[str] = "x <- LN(x + f(x)), gain l^(-power) in layer l"
    source: ClassVar[str] = "Zhang et al. 2019, arXiv 1908.11365"
    changes: ClassVar[Change] = "init"
    grew_out_of: ClassVar[tuple[str, ...]] = ("post_ln",)
    folds_to: ClassVar[str | None] = "post_ln"

    power: float = 0.5
    """The gain of layer l is l^(-power): 0.5 in the paper, 0.25 in its released code."""
    merged: bool = False
    """Encoder-decoder only: put one merged attention in place of the decoder's self- and cross-attention."""

    def __post_init__(self) -> None:
        if self.power < 0:
            raise ConfigError(f"power is {self.power}; expected 0.5 (paper), 0.25 (code) or more")

    def branches(self, context: StackContext) -> tuple[Branch, ...]:
        """Return the branches of one layer: in a decoder with merged attention, two."""
        if not self.merged:
            return super().branches(context)
        if context.architecture != "encoder_decoder":
            raise ConfigError(
                f"merged attention is self- and cross-attention in one, and an architecture '{context.architecture}' "
                "has no cross-attention; drop scheme.merged"
            )
        return ("merged", "ffn") if context.stack == "decoder" else ("self", "ffn")

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a post-norm site whose gain falls with its layer."""
        gain = site.layer**-self.power
        draws = glorot(gain, qk_gain=gain, gate_gain=gain, kind="xavier_uniform")
        return SitePlan(branch=site.kind, post=context.norm(), init=draws)
