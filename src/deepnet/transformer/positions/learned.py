"""A trained vector per position, added to the token's embedding."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from deepnet.schemes.base import Role, StackContext
from deepnet.transformer.positions.base import AddedPositions


class Positions(AddedPositions):
    """Trained vectors for positions 0 to max_positions - 1."""

    def __init__(self, context: StackContext, max_positions: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_positions, context.d_model))

    def forward(self, start: int, length: int) -> Tensor:
        """Return the vectors [length, D] of positions start, start + 1, ...; raises IndexError beyond the last."""
        if start + length > len(self.weight):
            raise IndexError(
                f"position {start + length - 1} does not exist: the model has learned positions "
                f"0 to {len(self.weight) - 1}; shorten the sentence or train with more max_positions"
            )
        return self.weight[start : start + length]

    def roles(self) -> Mapping[Role, nn.Parameter]:
        """Return the table."""
        return {"position": self.weight}
