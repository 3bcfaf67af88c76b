"""Pre-LN whose branches are divided by depth, with draws, learning rates and eps by width and depth, so that what was
tuned on a small model holds for a large one.

    x <- x + m_L^(-a) f(LN(x)),   m_N = d / d_base,   m_L = L / L_base,   a = 1 (depth-muP: 1/2)
    hidden matrices N(0, s^2 / m_N), learning rate * m_N^-1 m_L^(a-1), weight decay * m_N
    hidden norms and biases learning rate * m_L^(a-1);   every eps * m_N^-1 m_L^(-a)
    softmax(q k / d_head),   logits / m_N

Source: Dey et al., Don't be lazy: CompleteP, arXiv 2505.01618, table 1, and EleutherAI/nanoGPT-mup, branch completep;
depth-muP: Yang et al., arXiv 2310.02244. eps must stay far below the gradients: set optimizer.eps to 1e-12 or so.
Cost: as pre_ln.
Differs: token rows are multiplied by 1/s, not 1, so that they enter at size 1 beside sinusoidal positions. The source
trains decoders; in an encoder-decoder each stack counts its own layers: ours.
"""

from dataclasses import dataclass
from typing import ClassVar

from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    Change,
    Constant,
    Ends,
    Init,
    Policy,
    ResidualScheme,
    Role,
    Site,
    SitePlan,
    StackContext,
)

_HIDDEN: tuple[Role, ...] = ("q", "k", "v", "out", "fc1", "gate", "fc2")
_SMALL: tuple[Role, ...] = ("norm", "bias", "scale")


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Pre-LN with branches divided by depth; a learning rate tuned on a small model holds for a large one."""

    equation: ClassVar[str] = (
        "x <- x + m_L^(-a)*f(LN(x)), lr, weight decay and eps by width and depth"
    )
    source: ClassVar[str] = "Dey et al. 2025, arXiv 2505.01618, table 1"
    changes: ClassVar[Change] = "scale"
    grew_out_of: ClassVar[tuple[str, ...]] = ("pre_ln",)
    folds_to: ClassVar[str | None] = "pre_ln"

    depth_exponent: float = 1.0
    """The exponent a: 1 is CompleteP, 0.5 depth-muP."""
    d_base: int = 256
    """Width of the model on which the optimiser was tuned."""
    L_base: int = 2
    """Layers per stack of the model on which the optimiser was tuned."""
    base_std: float = 0.02
    """Standard deviation s of every matrix at the base width."""

    def __post_init__(self) -> None:
        if not 0.5 <= self.depth_exponent <= 1.0:
            raise ConfigError(f"depth_exponent is {self.depth_exponent}; expected 0.5 to 1")
        for name in ("d_base", "L_base", "base_std"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a positive number")

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a pre-norm site with a branch divided by depth and multipliers for the optimiser."""
        width, depth = context.d_model / self.d_base, context.num_layers / self.L_base
        draw = Init("normal", self.base_std * width**-0.5)
        lr, eps = depth ** (self.depth_exponent - 1.0), depth**-self.depth_exponent / width
        hidden = Policy(lr=lr / width, weight_decay=width, eps=eps)
        small = Policy(lr=lr, weight_decay=0.0, eps=eps)
        return SitePlan(
            branch=site.kind,
            pre=context.norm(),
            branch_scale=Constant(depth**-self.depth_exponent),
            attention_multiplier=context.num_heads / context.d_model,
            init=dict.fromkeys(_HIDDEN, draw),
            policy=dict.fromkeys(_HIDDEN, hidden) | dict.fromkeys(_SMALL, small),
        )

    def ends(self, context: StackContext) -> Ends:
        """Return ends with a final norm, logits divided by the width ratio, and the base learning rate."""
        width = context.d_model / self.d_base
        # what two stacks share follows the deeper one
        depth = max(context.encoder_layers, context.decoder_layers) / self.L_base
        roles: tuple[Role, ...] = ("embedding", "position", "vocabulary")
        policy = Policy(eps=depth**-self.depth_exponent / width)
        return Ends(
            embedding_multiplier=1.0 / self.base_std,
            final=context.norm(),
            logit_scale=Constant(1.0 / width),
            init=dict.fromkeys(roles, Init("normal", self.base_std)),
            policy=dict.fromkeys((*roles, *_SMALL), policy),
            fixes=("rows", "std", "lr", "weight_decay"),
        )
