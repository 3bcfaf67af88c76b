"""A penalty on each score that grows with the distance, at a rate per head: nothing is trained, any length goes.

    softmax(q k^T / sqrt(K) - m_h |i - j|),   m_h = 2^(-8h / H), h = 1 .. H

Source: Press et al., Train Short, Test Long, arXiv 2108.12409, section 3; where H is no power of two the authors' code,
which takes the rates of the next lower power and, for the other heads, every other one of twice as many. In an encoder
the symmetric form, as the authors describe it in the discussion of their repository.
"""

import torch
from torch import Tensor

from deepnet.schemes.base import StackContext
from deepnet.transformer.positions.base import AttentionPositions, InAttention, Places


class Positions(AttentionPositions):
    """Penalties by distance."""

    def __init__(self, context: StackContext, max_positions: int) -> None:
        super().__init__()
        self.num_heads = context.num_heads

    def forward(self, places: Places, *, dtype: torch.dtype) -> InAttention:
        """Return -rate * distance, [1 or B, H, T, C], in float32 at least."""
        dtype = torch.promote_types(dtype, torch.float32)
        rates = slopes(self.num_heads, places.queries.device).to(dtype)
        return InAttention(bias=-rates[:, None, None] * places.distances().abs()[:, None])


def slopes(num_heads: int, device: torch.device | None = None) -> Tensor:
    """Return the rate of each head, [H] float64; computed, so that no conversion of a model rounds them."""
    power = 1 << (num_heads.bit_length() - 1)
    head = torch.arange(num_heads, dtype=torch.float64, device=device)
    beyond = (2.0 * (head - power) + 1.0) / (2.0 * power)
    return 2.0 ** (-8.0 * torch.where(head < power, (head + 1.0) / power, beyond))
