"""Fixed sines and cosines of a token's position, added to its embedding."""

import torch
from torch import Tensor

from deepnet.schemes.base import StackContext
from deepnet.transformer.materialise import DerivedBuffers
from deepnet.transformer.positions.base import AddedPositions

_FIRST_LENGTH = 512


def sinusoidal_table(length: int, d_model: int) -> Tensor:
    """Return [length, D] float32: sines in the first half, cosines in the second, as Marian lays them out.

    Frequencies 10000^(-2i/D) (Vaswani et al., arXiv 1706.03762, section 3.5), computed in float64.
    """
    half = (d_model + 1) // 2
    rates = 10000.0 ** (-2.0 * torch.arange(half, dtype=torch.float64) / d_model)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()[:, : d_model // 2]], dim=1).float()


class Positions(AddedPositions, DerivedBuffers):
    """Fixed vectors for any length; the table grows when a longer sentence comes."""

    table: Tensor

    def __init__(self, context: StackContext, max_positions: int) -> None:
        super().__init__()
        self.d_model = context.d_model
        table = sinusoidal_table(_FIRST_LENGTH, context.d_model)
        self.register_buffer("table", table, persistent=False)

    def reset_parameters(self) -> None:
        """Compute the table again, of the length and rounded to the type it has."""
        self.table.copy_(sinusoidal_table(*self.table.shape))

    def forward(self, start: int, length: int) -> Tensor:
        """Return the vectors [length, D] of positions start, start + 1, ..."""
        if start + length > len(self.table):
            grown = sinusoidal_table(2 * (start + length), self.d_model)
            self.table = grown.to(self.table)
        return self.table[start : start + length]
