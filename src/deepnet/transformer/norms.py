"""The norms a model may be made of."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from deepnet.transformer.materialise import DerivedBuffers

NormKind = Literal["layer_norm", "rms_norm"]


def norm_factory(kind: NormKind, *, eps: float = 1e-5) -> Callable[[int], nn.Module]:
    """Return a function that makes a norm over the last axis for a given width."""

    def make(width: int) -> nn.Module:
        return nn.LayerNorm(width, eps=eps) if kind == "layer_norm" else nn.RMSNorm(width, eps=eps)

    return make


class ScaledNorm(DerivedBuffers):
    """A norm whose output is multiplied by a constant, in a buffer so that every layer compiles to the same graph."""

    multiplier: Tensor

    def __init__(self, norm: nn.Module, multiplier: float) -> None:
        super().__init__()
        self.norm = norm
        self.value = multiplier
        self.register_buffer("multiplier", torch.empty(1, dtype=torch.float64), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fill the multiplier in, rounded to the type it has."""
        self.multiplier.fill_(self.value)

    def forward(self, x: Tensor) -> Tensor:
        """Return multiplier * norm(x), of the shape of `x` [..., D]."""
        y: Tensor = self.norm(x)
        return y * self.multiplier.to(y.dtype)
