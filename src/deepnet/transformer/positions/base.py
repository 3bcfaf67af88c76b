"""The contract between a kind of positions and the stack: what is added to the embedding, or enters self-attention.

A kind is a file of this folder with a class `Positions`, made with the stack's context and `max_positions`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from deepnet.schemes.base import Role, StackContext

PositionKind = Literal["sinusoidal", "learned", "rotary", "alibi", "relative"]
ADDED_POSITIONS: tuple[PositionKind, ...] = ("sinusoidal", "learned")
"""The kinds that are `AddedPositions`."""


class AddedPositions(nn.Module, ABC):
    """Positions that are vectors added to the embedding."""

    @abstractmethod
    def forward(self, start: int, length: int) -> Tensor:
        """Return the vectors [length, D] of positions start, start + 1, ..."""

    def roles(self) -> Mapping[Role, nn.Parameter]:
        """Return the matrix of each role, which the scheme draws; by default there is none."""
        return {}


class Places(NamedTuple):
    """Where queries and keys of a stack's self-attention stand."""

    queries: Tensor
    """int64, [T], or [1] for hypotheses that all stand at one position."""
    keys: Tensor
    """int64, [C], or [B, C] where each sentence's cache has entries of its own."""

    def distances(self) -> Tensor:
        """Return key minus query, [1 or B, T or 1, C]."""
        keys = self.keys if self.keys.dim() == 2 else self.keys[None]
        return keys[:, None] - self.queries[:, None]


class InAttention(NamedTuple):
    """What positions give every self-attention of a stack."""

    rotary: tuple[Tensor, Tensor] | None = None
    """Cosines and sines [T, K] by which queries and keys are turned."""
    bias: Tensor | None = None
    """What is added to the scores, [1 or B, H, T or 1, C]."""


NO_POSITIONS = InAttention()


class AttentionPositions(nn.Module, ABC):
    """Positions that enter every self-attention of a stack, computed once for all of its layers."""

    @abstractmethod
    def forward(self, places: Places, *, dtype: torch.dtype) -> InAttention:
        """Return what enters; numbers for queries of type `dtype` are computed at least as exactly."""


def build_positions(
    kind: PositionKind, context: StackContext, *, max_positions: int
) -> AddedPositions | AttentionPositions:
    """Return the positions of a stack, of the kind that a file of this folder is named after."""
    found = import_module(f"deepnet.transformer.positions.{kind}")
    made: AddedPositions | AttentionPositions = found.Positions(context, max_positions)
    return made
