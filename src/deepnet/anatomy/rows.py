"""Where a model uses a row per token: its embeddings and the vocabulary projection, as they are or at unit length.

At unit length they are FixNorm's (Nguyen and Salazar 2019, arXiv 1910.05895): whatever multiplies them in the stock
model goes on doing so. A row of zeros stays one, with the gradient of a plain row: that of a length is infinite there.
"""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepnet.schemes.base import Role


class UnitRows(nn.Module):
    """A module of somebody else's class whose rows, one per token, enter its every use at unit length."""

    weight: Tensor

    def rows(self) -> Tensor:
        """Return the rows [V, D] as they are used."""
        return at_unit_length(self.weight)


class Embedding(UnitRows, nn.Embedding):
    """torch's embedding with rows of unit length; a class that multiplies what it looks up may inherit from it."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows [B, T, D] of ids [B, T]; padding's row gets no gradient."""
        return F.embedding(
            input,
            self.rows(),
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
        )


class Linear(UnitRows, nn.Linear):
    """torch's linear layer, as a vocabulary projection, with rows of unit length; its bias stays what it is."""

    def forward(self, input: Tensor) -> Tensor:
        """Return logits [B, T, V] of `input` [B, T, D]."""
        return F.linear(input, self.rows(), self.bias)


def at_unit_length(rows: Tensor) -> Tensor:
    """Return rows [V, D], each divided by its length; a row of zeros stays one."""
    length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / torch.where(length > 0, length, 1.0)


class TokenRows(NamedTuple):
    """A module that uses a row per token."""

    role: Role
    """"embedding", or "vocabulary" for the projection; the two may be the same parameter."""
    module: nn.Module
    unit: type[nn.Module]
    """The class that the module takes on for its rows to have unit length."""

    @property
    def weight(self) -> nn.Parameter:
        """Return the rows [V, D] as the optimiser updates them."""
        module: Any = self.module  # what wraps a module of torch's may only hand its weight on
        rows: nn.Parameter = module.weight
        return rows


def embedding_rows(module: nn.Module, unit: type[nn.Module] = Embedding) -> TokenRows:
    """Return an embedding's rows."""
    return TokenRows("embedding", module, unit)


def vocabulary_rows(model: Any) -> tuple[TokenRows, ...]:
    """Return the rows of a Hugging Face model's vocabulary projection, none where it has no projection."""
    projection = model.get_output_embeddings()
    return () if projection is None else (TokenRows("vocabulary", projection, Linear),)


def distinct_rows(uses: Iterable[TokenRows]) -> list[TokenRows]:
    """Return the first use of every parameter: a tied projection is the embedding."""
    first: dict[int, TokenRows] = {}
    for use in uses:
        first.setdefault(id(use.weight), use)
    return list(first.values())


def tying(uses: tuple[TokenRows, ...]) -> Literal["all", "decoder", "none"]:
    """Return which rows are shared with the vocabulary projection, read off the parameters themselves."""
    distinct = distinct_rows(uses)
    has_projection = any(use.role == "vocabulary" for use in uses)
    if not has_projection or any(use.role == "vocabulary" for use in distinct):
        return "none"
    return "all" if len(distinct) == 1 else "decoder"
