"""The norms a model may be made of."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from deepnet.transformer.scales import FixedScale

NormKind = Literal["layer_norm", "rms_norm"]


def norm_factory(kind: NormKind, *, eps: float = 1e-5) -> Callable[[int], nn.Module]:
    """Return a function that makes a norm over the last axis for a given width."""

    def make(width: int) -> nn.Module:
        return nn.LayerNorm(width, eps=eps) if kind == "layer_norm" else nn.RMSNorm(width, eps=eps)

    return make


class ScaledNorm(FixedScale):
    """A norm whose output is multiplied by a constant."""

    def __init__(self, norm: nn.Module, multiplier: float) -> None:
        super().__init__(multiplier)
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        """Return factor * norm(x), of the shape of `x` [..., D]."""
        return super().forward(self.norm(x))
