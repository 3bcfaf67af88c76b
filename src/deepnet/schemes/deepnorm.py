"""A Post-LN whose skip is scaled up and whose branches start small, both by depth.

    x <- LN(alpha * x + f(x)),   v, out, fc1 and fc2 drawn with gain beta, q and k with gain 1

Source: Wang et al., DeepNet, arXiv 2203.00555, figure 2 and section 4 (convention "paper"); Su, kexue.fm/archives/8978
(convention "essay": coefficients from the optimiser, so that the loss's first-order change does not grow with depth).
Cost: as post_ln; alpha is a constant, not a parameter.
Differs: the essay treats one stack; its encoder-decoder form here is ours (see `_essay`).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    Change,
    Constant,
    Norm,
    OptimizerFamily,
    ResidualScheme,
    Site,
    SitePlan,
    StackContext,
    glorot,
)

# A branch's first-order effect is gain^p / alpha^q of the optimiser: powers (p, q) by the size of its update.
_POWERS: dict[OptimizerFamily, tuple[int, int]] = {"sgd": (2, 2), "adam": (1, 1), "lamb": (2, 1)}


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """A Post-LN with a skip scaled up and branches that start small, by depth; trains at 1,000 layers."""

    equation: ClassVar[str] = "x <- LN(alpha*x + f(x)), gain beta on v, out, fc1, fc2"
    source: ClassVar[str] = "Wang et al. 2022, arXiv 2203.00555, figure 2"
    changes: ClassVar[Change] = "scale"
    grew_out_of: ClassVar[tuple[str, ...]] = ("post_ln_init",)
    folds_to: ClassVar[str | None] = "post_ln"

    convention: Literal["paper", "essay"] = "paper"
    """The paper's coefficients, or the essay's optimiser-dependent ones."""
    optimizer: OptimizerFamily | None = None
    """essay only: the family of optimisers to derive from; by default the recipe's, which it may not contradict."""
    placement: Literal["post", "pre"] = "post"
    """essay only: where the norm stands; "pre" keeps alpha at 1."""
    balance: Literal["symmetric", "gain", "skip"] = "symmetric"
    """essay only: split the factor between alpha and beta, or put all in the gain (alpha 1) or the skip (beta 1)."""

    def __post_init__(self) -> None:
        changed = [
            n for n in ("optimizer", "placement", "balance") if getattr(self, n) != _default(n)
        ]
        if self.convention == "paper" and changed:
            raise ConfigError(f"'{changed[0]}' has no effect under convention 'paper'; use 'essay'")
        if self.placement == "pre" and self.balance != "symmetric":
            raise ConfigError(f"balance '{self.balance}' has no effect under placement 'pre'")

    def coefficients(self, context: StackContext) -> tuple[float, float]:
        """Return (alpha, beta) of this stack."""
        if self.convention == "paper":
            return _paper(context)
        family = self.optimizer or context.optimizer_family
        if family != context.optimizer_family:
            raise ConfigError(
                f"scheme.optimizer is '{family}' but the recipe's optimiser is of the family "
                f"'{context.optimizer_family}'; drop scheme.optimizer or change the optimiser"
            )
        return _essay(context, family, "gain" if self.placement == "pre" else self.balance)

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a site with alpha on the skip and gain beta on the branch."""
        alpha, beta = self.coefficients(context)
        if self.placement == "pre":
            return SitePlan(branch=site.kind, pre=context.norm(), init=glorot(beta))
        return SitePlan(
            branch=site.kind, post=context.norm(), skip=Constant(alpha), init=glorot(beta)
        )

    def final_norm(self, context: StackContext) -> Norm | None:
        """Return a norm where the norms stand before the branches."""
        return context.norm() if self.placement == "pre" else None


def _default(name: str) -> object:
    return Scheme.__dataclass_fields__[name].default


def _paper(context: StackContext) -> tuple[float, float]:
    """Return (alpha, beta) of the DeepNet paper, figure 2."""
    if context.architecture == "encoder_decoder":
        if context.stack == "decoder":
            layers = context.decoder_layers
            return (3.0 * layers) ** 0.25, (12.0 * layers) ** -0.25
        root = (context.encoder_layers**4.0 * context.decoder_layers) ** (1.0 / 16.0)
        return 0.81 * root, 0.87 / root
    return (2.0 * context.num_layers) ** 0.25, (8.0 * context.num_layers) ** -0.25


def _essay(
    context: StackContext, family: OptimizerFamily, balance: Literal["symmetric", "gain", "skip"]
) -> tuple[float, float]:
    """Return (alpha, beta) for which sites * beta^p / alpha^q = 1, the essay's condition on one stack.

    In an encoder-decoder the decoder is such a stack of 3M sites. The encoder's change reaches the output through M
    cross-attentions that each pass on beta_d^2 / alpha_d of it (DeepNet, Theorem 4.3), so its condition is
    M * beta_d^2 / alpha_d * 2N * beta_e^p / alpha_e^q = 1: ours, the essay does not treat it.
    """
    if context.architecture != "encoder_decoder":
        return _solve(2.0 * context.num_layers, family, balance)
    alpha, beta = _solve(3.0 * context.decoder_layers, family, balance)
    if context.stack == "decoder":
        return alpha, beta
    passed_on = context.decoder_layers * beta**2 / alpha
    return _solve(2.0 * context.encoder_layers * passed_on, family, balance)


def _solve(
    weight: float, family: OptimizerFamily, balance: Literal["symmetric", "gain", "skip"]
) -> tuple[float, float]:
    """Return (alpha, beta) with weight * beta^p / alpha^q = 1; the essay's own choice for LAMB is alpha = 1."""
    p, q = _POWERS[family]
    if balance == "skip":
        return weight ** (1.0 / q), 1.0
    if balance == "gain" or family == "lamb":
        return 1.0, weight ** (-1.0 / p)
    beta = weight ** (-1.0 / (p + q))
    return 1.0 / beta, beta
