"""A trained number per head and distance, added to each score; far distances share one.

    softmax(q k^T / sqrt(K) + b_h[bucket(j - i)]),   one table per stack, which all of its layers read

Source: Raffel et al., T5, arXiv 1910.10683, section 2.1: 32 buckets, half of them for single distances and the others
spaced by logarithms up to 128; an encoder tells the two directions apart, a decoder has only one.
Differs: scores are scaled as everywhere here, where T5 starts from smaller queries instead. The table is drawn as T5's,
N(0, 1/D), whatever the scheme: it is a bias of the scores and no part of the stream. It is not decayed.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepnet.schemes.base import StackContext
from deepnet.transformer.positions.base import AttentionPositions, InAttention, Places

BUCKETS, LONGEST = 32, 128


class Positions(AttentionPositions):
    """Trained biases by distance."""

    def __init__(self, context: StackContext, max_positions: int) -> None:
        super().__init__()
        self.std = context.d_model**-0.5
        self.both_ways = context.stack == "encoder"
        self.bias = nn.Parameter(torch.empty(BUCKETS, context.num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table."""
        nn.init.normal_(self.bias, std=self.std)

    def forward(self, places: Places, *, dtype: torch.dtype) -> InAttention:
        """Return the numbers of the distances, [1 or B, H, T, C], in the table's type."""
        found = F.embedding(bucket(places.distances(), both_ways=self.both_ways), self.bias)
        return InAttention(bias=found.permute(0, 3, 1, 2))


def bucket(distances: Tensor, *, both_ways: bool) -> Tensor:
    """Return the bucket of each distance, key minus query, int64; what is ahead shares 0 unless `both_ways`.

    Computed in float32, as T5 does: its trained tables mean these buckets, to the last distance.
    """
    number = BUCKETS // 2 if both_ways else BUCKETS
    size = distances.abs() if both_ways else distances.neg().clamp(min=0)
    near = number // 2
    steps = torch.log(size.clamp(min=1).float() / near) / math.log(LONGEST / near)
    far = (near + (steps * (number - near)).to(torch.int64)).clamp(max=number - 1)
    offset = (distances > 0) * number if both_ways else 0
    return torch.where(size < near, size, far) + offset
