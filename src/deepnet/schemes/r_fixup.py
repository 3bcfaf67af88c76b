"""No norms: small branches whose last matrix starts at zero, with trained shifts and scales in place of biases.

    attention:     x <- x + s * MHA(x - c_0)                              cross-attention: the memory is not shifted
    feed-forward:  x <- x + s * W_2 (relu(W_1 (x - c_1) - c_2) - c_3)     s = 1, c = 0 at the start, no biases
    encoder output s_e * (x - c_e), decoder output x - c_d
    gains at R sites in the whole model: q, k, v R^(-1/6), fc1 R^(-1/2); out, fc2 and an untied vocabulary start at 0

Source: Zhang et al., Fixup Initialization, arXiv 1901.09321, and the authors' code for translation.
Cost: a scalar s per site, one shift per attention and three per feed-forward; no norm, no biases. Nothing bounds x.
Differs: with tied embeddings the vocabulary projection is the embedding and starts as one, N(0, 1/d): the authors' code
does the same without saying so. The scalars' learning rate is a tenth, as in their image code; the one for translation
leaves it at 1. A gate (SwiGLU) starts with gain 1. Single stacks, with R = 2N, are ours. As out and fc2 are zero, the
first update moves only these and the ends, and nothing of an encoder that a decoder reads; with an untied vocabulary,
which is zero as well, it moves nothing but the vocabulary.
"""

from dataclasses import dataclass
from typing import ClassVar

from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    ONE,
    Change,
    Ends,
    Init,
    Learned,
    Policy,
    ResidualScheme,
    Role,
    Site,
    SitePlan,
    StackContext,
    embedding_init,
    glorot,
)

_ZERO = Init("constant", 0.0)


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """No norms or biases; branches start at 0, with trained scalar shifts and scales."""

    equation: ClassVar[str] = "x <- x + s*f(x - c), f = 0 at the start"
    source: ClassVar[str] = "Zhang et al. 2019, arXiv 1901.09321"
    changes: ClassVar[Change] = "init"
    grew_out_of: ClassVar[tuple[str, ...]] = ("post_ln",)
    folds_to: ClassVar[str | None] = "no_norm"

    scale_lr: float = 0.1
    """Learning-rate multiplier of scales and shifts: 0.1 in the authors' image code, 1 in that for translation."""

    def __post_init__(self) -> None:
        if self.scale_lr <= 0:
            raise ConfigError(f"scale_lr is {self.scale_lr}; expected a positive multiplier")

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a site with a trained scale, shifts, and a branch that starts at zero."""
        attention, first = _sites(context) ** (-1 / 6), _sites(context) ** (-1 / 2)
        draws: dict[Role, Init] = glorot(attention, qk_gain=attention, kind="xavier_uniform")
        draws |= {"fc1": Init("xavier_uniform", first), "out": _ZERO, "fc2": _ZERO}
        return SitePlan(
            branch=site.kind,
            branch_scale=Learned(init=1.0),
            shifts=(
                {"input": 0.0, "preactivation": 0.0, "activation": 0.0}
                if site.kind == "ffn"
                else {"input": 0.0}
            ),
            bias=False,
            init=draws,
            policy=self._policy,
        )

    def ends(self, context: StackContext) -> Ends:
        """Return ends with a trained shift, on an encoder also a trained scale, and no norm."""
        draws = embedding_init(context)
        untied = context.tie_embeddings == "none"
        if untied:
            draws["vocabulary"] = _ZERO
        return Ends(
            exit_shift=0.0,
            exit_scale=Learned(init=1.0) if context.stack == "encoder" else ONE,
            init=draws,
            policy=self._policy,
            fixes=("rows", "std") if untied else (),
        )

    @property
    def _policy(self) -> dict[Role, Policy]:
        return {"scale": Policy(lr=self.scale_lr, weight_decay=0.0)}


def _sites(context: StackContext) -> int:
    """Return the residual sites of the whole model, both stacks."""
    crossed = context.decoder_layers if context.architecture == "encoder_decoder" else 0
    return 2 * (context.encoder_layers + context.decoder_layers) + crossed
