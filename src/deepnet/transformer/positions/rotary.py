"""Angles by which self-attention turns queries and keys, so that scores depend on distances."""

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
    """Return queries or keys [B, H, T, K] turned by the angles of their positions, halves paired."""
    cos, sin = (part.to(x.dtype) for part in rotary)
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin
