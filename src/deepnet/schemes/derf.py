"""A Pre-LN without norms: in the place of each stands a trained error function.

    x <- x + f(N(x)),   N(x) = g * erf(a x + s) + b,   a and s trained numbers, g and b vectors;   N also ends a stack

Source: Chen et al., Stronger Normalization-Free Transformers, arXiv 2512.10938, and the authors' code.
Cost: as dyt, and one number more for each N.
Differs: a starts at 1 everywhere, as in the source's language model (GPT-2); vision and speech models start it at 0.5.
There the trained number sqrt(d) multiplies the sum of a token's and its position's row; here, as with dyt, the token's
alone, as sinusoids are of size 1 and rotary positions are not in that sum. As with dyt, weights start Glorot normal
with gain 1, an encoder-decoder is ours, and N stands before the branches only. Train it in bf16 or float32.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from deepnet.schemes import dyt
from deepnet.schemes.base import Change, Norm


@dataclass(frozen=True, kw_only=True)
class Scheme(dyt.Scheme):
    """Pre-LN with a trained error function in the place of every norm."""

    equation: ClassVar[str] = "x <- x + f(g*erf(a*x + s) + b)"
    source: ClassVar[str] = "Chen et al. 2025, arXiv 2512.10938"
    changes: ClassVar[Change] = "norm"
    grew_out_of: ClassVar[tuple[str, ...]] = ("dyt",)

    attention: float = 1.0
    """Where a starts before self- and cross-attention."""
    ffn: float = 1.0
    """Where a starts before the feed-forward branch."""
    final: float = 1.0
    """Where a starts at the end of a stack."""

    def norm(self, start: float) -> Norm:
        """Return what stands in the place of a norm, its a starting there."""
        return Norm(lambda width: DynamicErf(width, start))


class DynamicErf(dyt.DynamicTanh):
    """g * erf(a x + s) + b over the last axis, a and s trained numbers."""

    shifted: ClassVar[bool] = True

    def squash(self, x: Tensor) -> Tensor:
        """Return erf of a x + s [..., D]."""
        return torch.erf(x)
