"""What is claimed of a residual scheme, in terms that can be checked: one row of a table of schemes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from torch import Tensor, nn

from deepnet.schemes.base import ALL_ARCHITECTURES, Architecture, Policy, Role, Site, StackName
from deepnet.transformer.inputs import Inputs
from deepnet.transformer.layers import Sublayer
from deepnet.transformer.models import TransformerConfig
from deepnet.transformer.residual import Residual
from deepnet.transformer.stacks import Stack, StackEnds

SIZES: dict[str, Any] = {
    "d_model": 64,
    "ffn_dim": 128,
    "num_heads": 4,
    "vocab_size": 200,
    "dropout": 0.0,
}
"""The sizes at which initialisation and parameter counts are claimed; every stack has 4 layers."""


@dataclass(frozen=True)
class SiteParts:
    """One residual site taken apart, for an equation written by hand."""

    sublayer: Sublayer
    inputs: Inputs

    @property
    def site(self) -> Site:
        """Return where the site stands."""
        return self.sublayer.residual.site

    @property
    def residual(self) -> Residual:
        """Return the site's norms (`pre`, `out`, `post`), scales (`skip`, `branch_scale`), `shift` and `extra`."""
        return self.sublayer.residual

    @property
    def branch(self) -> nn.Module:
        """Return the attention or the feed-forward module."""
        return self.sublayer.branch

    def f(self, x: Tensor, values: Tensor | None = None) -> Tensor:
        """Return the bare branch's output from its input, both [B, T, D]; of `values` [B, C, V] where given any."""
        return self.sublayer.compute(x, self.inputs._replace(values=values))


@dataclass(frozen=True)
class StackParts:
    """A stack's sites in order, its ends, and the model it stands in."""

    sites: list[SiteParts]
    ends: StackEnds
    name: StackName
    config: TransformerConfig
    updates: int
    """The updates that the model has behind it."""

    @classmethod
    def of(
        cls, stack: Stack, inputs: Inputs, config: TransformerConfig, *, updates: int = 0
    ) -> "StackParts":
        """Take a stack of a model of that shape apart."""
        sites = [SiteParts(sublayer, inputs) for sublayer in stack.sites()]
        return cls(sites, stack.ends, stack.name, config, updates)

    @property
    def layers(self) -> list[list[SiteParts]]:
        """Return the sites layer by layer."""
        return [list(group) for _, group in groupby(self.sites, lambda part: part.site.layer)]


def glorot_std(stack: StackName, role: Role, layer: int) -> float:
    """Return Glorot's std with gain 1, and d^(-1/2) for embeddings and vocabulary, at the claimed sizes."""
    d, ffn = SIZES["d_model"], SIZES["ffn_dim"]
    return math.sqrt(2 / (d + ffn)) if role in ("fc1", "gate", "fc2") else d**-0.5


def gained(gain: Callable[[StackName], float]) -> Callable[[StackName, Role, int], float]:
    """Return Glorot's std with a gain per stack on v, out, fc1 and fc2."""
    return lambda stack, role, layer: (
        glorot_std(stack, role, layer)
        * (gain(stack) if role in ("v", "out", "fc1", "fc2") else 1.0)
    )


def nothing_more(config: TransformerConfig) -> int:
    """Return 0: the scheme has the parameters of Post-LN."""
    return 0


@dataclass(frozen=True, kw_only=True)
class SchemeCase:
    """One row: a scheme, its options, and what its source says of it, written without using the scheme."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    equation: Callable[[Tensor, StackParts], Tensor]
    """A whole stack from its stream's input to its output [B, T, D], after as many updates as its parts say."""
    coefficients: Mapping[tuple[int, int], tuple[float | None, float | None]]
    """(N, M) -> (alpha, beta) of the decoder, or of the only stack there is; None where not constant."""
    std: Callable[[StackName, Role, int], float] = glorot_std
    """(stack, role, layer from 1, or 0 at the ends) -> std of that matrix in a 4-layer stack of the claimed sizes."""
    extra_parameters: Callable[[TransformerConfig], int] = nothing_more
    """The number of parameters more (or fewer) than Post-LN's."""
    starts: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Pattern of names -> (mean, std) of parameters that have no role, such as those of modules of the scheme's own."""
    zero_gradient: tuple[str, ...] = ()
    """Patterns of "architecture/name" of all parameters whose gradient is zero before the first update."""
    policies: Mapping[Role, Policy] = field(default_factory=dict)
    """What reaches the optimiser for matrices and scales of the sites, where it is not the default."""
    architectures: tuple[Architecture, ...] = ALL_ARCHITECTURES
    """Those of the scheme's architectures that the options allow."""
    shape: Mapping[str, Any] = field(default_factory=dict)
    """Sizes and choices of the model that the scheme needs, such as tie_embeddings."""
