"""A Pre-LN without norms: in the place of each stands a trained hyperbolic tangent.

    x <- x + f(N(x)),   N(x) = g * tanh(a x) + b,   a one trained number, g and b vectors;   N also ends a stack

Source: Zhu et al., Transformers without Normalization, arXiv 2503.10622, and the authors' code.
Cost: per site and per stack the parameters of a layer norm and one more, and one on the embedding. The model's own kind
of norm and its eps are not used.
Differs: the source has b in vision models only. Its number on the embedding, sqrt(d) at the start, is for language
models. Its 7B language model starts a at 0.8 before attention and 0.2 elsewhere, its 34B one at 0.2 and 0.05, vision
models at 0.5 as here. Weights start Glorot normal with gain 1. An encoder-decoder is ours. N does not cancel a scale of
x, so that what DeepNorm and others derive for norms does not hold for it: it stands before the branches only.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    Change,
    Ends,
    Learned,
    Norm,
    ResidualScheme,
    Site,
    SitePlan,
    StackContext,
    embedding_init,
    glorot,
)


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Pre-LN with a trained hyperbolic tangent in the place of every norm."""

    equation: ClassVar[str] = "x <- x + f(g*tanh(a*x) + b)"
    source: ClassVar[str] = "Zhu et al. 2025, arXiv 2503.10622"
    changes: ClassVar[Change] = "norm"
    grew_out_of: ClassVar[tuple[str, ...]] = ("pre_ln",)

    attention: float = 0.5
    """Where a starts before self- and cross-attention."""
    ffn: float = 0.5
    """Where a starts before the feed-forward branch."""
    final: float = 0.5
    """Where a starts at the end of a stack."""

    def __post_init__(self) -> None:
        for name in ("attention", "ffn", "final"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a positive number")

    def norm(self, start: float) -> Norm:
        """Return what stands in the place of a norm, its a starting there."""
        return Norm(lambda width: DynamicTanh(width, start))

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a site with the function before its branch."""
        start = self.ffn if site.kind == "ffn" else self.attention
        return SitePlan(branch=site.kind, pre=self.norm(start), init=glorot())

    def ends(self, context: StackContext) -> Ends:
        """Return ends with the function in place of the final norm and a trained number on the embedding."""
        return Ends(
            embedding_multiplier=Learned(init=context.d_model**0.5),
            final=self.norm(self.final),
            init=embedding_init(context),
        )


class DynamicTanh(nn.Module):
    """g * tanh(a x) + b over the last axis, a one trained number."""

    shifted: ClassVar[bool] = False
    """Whether a trained number s is added to a x."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.start = start
        self.a = nn.Parameter(torch.empty(1))
        self.g = nn.Parameter(torch.empty(width))
        self.b = nn.Parameter(torch.empty(width))
        self.s = nn.Parameter(torch.empty(1)) if self.shifted else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set a to its start, g to 1, b and s to 0."""
        nn.init.constant_(self.a, self.start)
        nn.init.ones_(self.g)
        nn.init.zeros_(self.b)
        if self.s is not None:
            nn.init.zeros_(self.s)

    def squash(self, x: Tensor) -> Tensor:
        """Return what g multiplies, from a x or a x + s [..., D]."""
        return torch.tanh(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return g * tanh(a x) + b of `x` [..., D]."""
        entered = self.a * x if self.s is None else self.a * x + self.s
        return self.g * self.squash(entered) + self.b
