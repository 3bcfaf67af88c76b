"""Several models that search and scoring see as one: the mean of their probabilities."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from deepnet.decoding.interface import Cache, TranslationModel
from deepnet.errors import ConfigError


@dataclass(frozen=True)
class _Caches:
    members: tuple[Cache, ...]

    def select(self, rows: Tensor) -> None:
        for cache in self.members:
            cache.select(rows)

    def retain(self, entries: Tensor) -> None:
        for cache in self.members:
            cache.retain(entries)


class Ensemble(nn.Module):
    """Models of one vocabulary, of any sizes and schemes, whose probabilities are averaged at every token."""

    def __init__(self, models: Sequence[TranslationModel]) -> None:
        """Raise ConfigError where there is no model, or where their vocabularies differ in size."""
        super().__init__()
        sizes = sorted({model.start + 1 for model in models})
        if len(sizes) != 1:
            found = " and ".join(str(size) for size in sizes) or "no models"
            raise ConfigError(f"an ensemble needs models of one vocabulary size; it got {found}")
        self.members = nn.ModuleList(cast(Sequence[nn.Module], models))
        self.start = models[0].start
        known = [model.max_positions for model in models if model.max_positions is not None]
        self.max_positions = min(known, default=None)

    def forward(self, source: Tensor, source_keep: Tensor | None, target_in: Tensor) -> Tensor:
        """Return the log-probabilities `[B, T, V]` of every next token."""
        return _mean([model(source, source_keep, target_in) for model in self._models()])

    def encode(self, source: Tensor, source_keep: Tensor | None) -> tuple[Any, ...]:
        """Run every encoder over `source` `[B, S]`."""
        return tuple(model.encode(source, source_keep) for model in self._models())

    def begin(self, memory: tuple[Any, ...], source_keep: Tensor | None) -> _Caches:
        """Return the caches of a search."""
        pairs = zip(self._models(), memory, strict=True)
        return _Caches(tuple(model.begin(part, source_keep) for model, part in pairs))

    def step(self, tokens: Tensor, position: int, cache: _Caches, keep: Tensor | None) -> Tensor:
        """Return the log-probabilities `[B, W, V]` after `tokens` `[B, W]`."""
        pairs = zip(self._models(), cache.members, strict=True)
        return _mean([model.step(tokens, position, part, keep) for model, part in pairs])

    def _models(self) -> list[TranslationModel]:
        return cast(list[TranslationModel], list(self.members))


def _mean(logits: list[Tensor]) -> Tensor:
    """Return the logarithm of the mean probability, without leaving log space."""
    dtype = torch.promote_types(logits[0].dtype, torch.float32)
    logp = torch.stack([torch.log_softmax(part, -1, dtype=dtype) for part in logits])
    return logp.logsumexp(0) - math.log(len(logits))
