"""A Post-LN whose branches grow in over the first T updates, after which it is exactly Post-LN.

    x <- LN(x + a_t * f(x)),   a_t from 0 to 1 in T updates,   DeepNorm's beta at the start

Source: Liu et al., BranchNorm, arXiv 2305.02790, equation 7.
Cost: as post_ln; a_t is computed from the number of updates, which is the only thing saved.
Differs: the paper names exp and sigmoid growth without legible formulas; those here are ours, normalised to reach 1
at T. At t = 0 every branch's weight has gradient zero, as in the paper's equation.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from deepnet.errors import ConfigError
from deepnet.schemes import deepnorm
from deepnet.schemes.base import (
    Change,
    ResidualScheme,
    Scheduled,
    Site,
    SitePlan,
    StackContext,
    glorot,
)


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """A Post-LN whose branches grow in over the first T updates and which is exactly Post-LN afterwards."""

    equation: ClassVar[str] = "x <- LN(x + a_t*f(x)), a_t from 0 to 1, DeepNorm's beta"
    source: ClassVar[str] = "Liu et al. 2023, arXiv 2305.02790, equation 7"
    changes: ClassVar[Change] = "schedule"
    grew_out_of: ClassVar[tuple[str, ...]] = ("deepnorm",)
    folds_to: ClassVar[str | None] = "post_ln"

    T: int = 4000
    """Optimiser updates until the branches have grown in."""
    growth: Literal["linear", "exp", "sigmoid"] = "linear"
    """The shape of the growth."""
    exp_rate: float = 1e-3
    """exp only: the rate k per update in (1 - e^(-k t)) / (1 - e^(-k T))."""
    sigmoid_steepness: float = 10.0
    """sigmoid only: u * T of the logistic curve centred at T / 2."""

    def __post_init__(self) -> None:
        if self.T < 1:
            raise ConfigError(f"T is {self.T}; expected at least 1 update")
        for name in ("exp_rate", "sigmoid_steepness"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a positive number")

    def factor(self, step: int) -> float:
        """Return a_t after `step` updates: 0 at step 0, exactly 1 from step T on."""
        if step >= self.T:
            return 1.0
        t = step / self.T
        if self.growth == "exp":
            return math.expm1(-self.exp_rate * step) / math.expm1(-self.exp_rate * self.T)
        if self.growth == "sigmoid":
            edge = _logistic(-self.sigmoid_steepness / 2)
            return (_logistic(self.sigmoid_steepness * (t - 0.5)) - edge) / (1.0 - 2.0 * edge)
        return t

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a post-norm site with the scheduled branch scale and DeepNorm's gain."""
        _, beta = deepnorm.Scheme().coefficients(context)
        return SitePlan(
            branch=site.kind,
            post=context.norm(),
            branch_scale=Scheduled(self.factor),
            init=glorot(beta),
        )


def _logistic(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))
