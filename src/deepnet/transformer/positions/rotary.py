"""Angles by which self-attention turns queries and keys, so that scores depend on distances."""

from typing import Any

import torch
from torch import Tensor

from deepnet.schemes.base import StackContext
from deepnet.transformer.positions.base import AttentionPositions, InAttention, Places


class Positions(AttentionPositions):
    """Cosines and sines of a position's angles (Su et al., RoFormer, arXiv 2104.09864, equation 34)."""

    def __init__(self, context: StackContext, max_positions: int) -> None:
        super().__init__()
        self.head_size = context.d_model // context.num_heads

    def forward(self, places: Places, *, dtype: torch.dtype) -> InAttention:
        """Return cosines and sines [T, K] in float64, in the order in which `rotate` needs them.

        Nothing is kept in a buffer: a model's conversion to another type would round it.
        """
        queries = places.queries.to(torch.float64)
        evens = torch.arange(0, self.head_size, 2, dtype=torch.float64, device=queries.device)
        angles = queries[:, None] * 10000.0 ** (-evens / self.head_size)
        cos, sin = angles.cos(), angles.sin()
        return InAttention(rotary=(torch.cat([cos, cos], 1), torch.cat([-sin, sin], 1)))


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Return queries or keys [..., T, K] turned by the angles of their positions, halves paired."""
    cos, sin = (part.to(x.dtype) for part in rotary)
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


def rotate_both(q: Tensor, k: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return queries [B, H, T, K] and keys [B, G, T, K] turned as by `rotate`.

    In training, where H is G, they are turned as one tensor, in half the operations. An audit could not tell its parts
    apart, and a compiler has a better way.
    """
    if torch.compiler.is_compiling() or not q.requires_grad or q.shape != k.shape:
        return rotate(q, rotary), rotate(k, rotary)
    cos, sin = (part.to(q.dtype) for part in rotary)
    q, k = _Turn.apply(torch.stack((q, k)), cos, sin).unbind()  # type: ignore[no-untyped-call]
    return q, k


class _Turn(torch.autograd.Function):
    """What `rotate` computes of a contiguous tensor [..., T, K], without a rolled copy of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, *sin.chunk(2, -1))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        upper, lower = sin.chunk(2, -1)
        return _turned(gradients[0], cos, lower, upper), None, None


def _turned(x: Tensor, cos: Tensor, upper: Tensor, lower: Tensor) -> Tensor:
    """Return x * cos + [b * upper, a * lower], where `x` is [a, b]."""
    turned = x * cos
    (a, b), (turned_a, turned_b) = x.chunk(2, -1), turned.chunk(2, -1)
    turned_a.addcmul_(b, upper)
    turned_b.addcmul_(a, lower)
    return turned
