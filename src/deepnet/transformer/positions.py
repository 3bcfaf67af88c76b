"""Where a token stands: sinusoidal or learned vectors added to the embedding, or rotary angles of queries and keys."""

from typing import Literal

import torch
from torch import Tensor, nn

from deepnet.transformer.materialise import DerivedBuffers

PositionKind = Literal["sinusoidal", "learned", "rotary"]


def sinusoidal_table(length: int, d_model: int) -> Tensor:
    """Return [length, D] float32: sines in the first half, cosines in the second, as Marian lays them out.

    Frequencies 10000^(-2i/D) (Vaswani et al., arXiv 1706.03762, section 3.5), computed in float64.
    """
    half = (d_model + 1) // 2
    rates = 10000.0 ** (-2.0 * torch.arange(half, dtype=torch.float64) / d_model)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()[:, : d_model // 2]], dim=1).float()


class SinusoidalPositions(DerivedBuffers):
    """Fixed vectors for any length; the table grows when a longer sentence comes."""

    table: Tensor

    def __init__(self, d_model: int, initial_length: int = 512) -> None:
        super().__init__()
        self.d_model = d_model
        self.register_buffer("table", sinusoidal_table(initial_length, d_model), persistent=False)

    def reset_parameters(self) -> None:
        """Compute the table again, of the length and rounded to the type it has."""
        self.table.copy_(sinusoidal_table(*self.table.shape))

    def forward(self, start: int, length: int) -> Tensor:
        """Return the vectors [length, D] of positions start, start + 1, ..."""
        if start + length > len(self.table):
            grown = sinusoidal_table(2 * (start + length), self.d_model)
            self.table = grown.to(self.table)
        return self.table[start : start + length]


class LearnedPositions(nn.Module):
    """Trained vectors for positions 0 to max_positions - 1."""

    def __init__(self, d_model: int, max_positions: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_positions, d_model))

    def forward(self, start: int, length: int) -> Tensor:
        """Return the vectors [length, D] of positions start, start + 1, ...; raises IndexError beyond the last."""
        if start + length > len(self.weight):
            raise IndexError(
                f"position {start + length - 1} does not exist: the model has learned positions "
                f"0 to {len(self.weight) - 1}; shorten the sentence or train with more max_positions"
            )
        return self.weight[start : start + length]


class RotaryAngles(nn.Module):
    """Cosines and sines by which queries and keys are turned (Su et al., RoFormer, arXiv 2104.09864, equation 34)."""

    def __init__(self, head_size: int) -> None:
        super().__init__()
        self.head_size = head_size

    def forward(
        self, start: int, length: int, *, device: torch.device | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [length, K/2] float64 of positions start, start + 1, ...

        Nothing is kept in a buffer: a model's conversion to another type would round it.
        """
        places = torch.arange(start, start + length, dtype=torch.float64, device=device)
        evens = torch.arange(0, self.head_size, 2, dtype=torch.float64, device=device)
        angles = places[:, None] * 10000.0 ** (-evens / self.head_size)
        return angles.cos(), angles.sin()


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Return queries or keys [B, H, T, K] turned by the angles of their positions, halves paired."""
    cos, sin = (part.to(x.dtype) for part in rotary)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
