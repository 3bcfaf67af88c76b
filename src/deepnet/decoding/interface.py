"""What search needs of a model, what it returns, and its settings.

Letters of shapes: B sentences, S source tokens, W hypotheses per sentence, C cached entries, V vocabulary without
padding.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from deepnet.config import Section
from deepnet.errors import DataError


class Cache(Protocol):
    """Keys and values of a running search."""

    def select(self, rows: Tensor) -> None:
        """Keep only the sentences `rows` `[R]`, in that order."""
        ...

    def retain(self, entries: Tensor) -> None:
        """Keep only the entries `[B, C']` of each sentence, in that order."""
        ...


class TranslationModel(Protocol):
    """What search and scoring need of a model: a `Transformer` or an `Ensemble`."""

    training: bool

    @property
    def start(self) -> int:
        """Id that the decoder starts from (the padding id, one more than the ids it can choose)."""
        ...

    @property
    def max_positions(self) -> int | None:
        """Longest source and target in tokens; None where positions are unbounded."""
        ...

    def train(self, mode: bool = True, /) -> Any:
        """Switch dropout on or off."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the weights; they say on which device the model is."""
        ...

    def __call__(self, source: Tensor, keep: Tensor | None, target_in: Tensor, /) -> Tensor:
        """Return the logits `[B, T, V]` of what follows each prefix of `target_in` `[B, T]`."""
        ...

    def encode(self, source: Tensor, source_keep: Tensor | None, /) -> Any:
        """Run the encoder once over `source` `[B, S]`."""
        ...

    def begin(self, memory: Any, source_keep: Tensor | None, /) -> Any:
        """Return the `Cache` of a search over the encoded sentences."""
        ...

    def step(self, tokens: Tensor, position: int, cache: Any, keep: Tensor | None, /) -> Tensor:
        """Return the logits `[B, W, V]` after `tokens` `[B, W]`; hypothesis w attends to the entries of `keep`."""
        ...


_IDLE = {
    "beam": ("temperature", "top_k", "top_p", "seed"),
    "sampling": ("beam_size", "early_stopping"),
}


class DecodingConfig(Section):
    """How a trained model is turned into text."""

    method: Literal["beam", "sampling"] = "beam"
    """Beam search (with beam_size 1: greedy), or random sampling."""
    beam_size: Annotated[int, Field(ge=1)] = 5
    """Hypotheses per sentence that beam search keeps open."""
    length_penalty: Annotated[float, Field(ge=0)] = 1.0
    """Exponent p of score = log-probability / length^p, the end of the sentence counted (DeepNet 1, BranchNorm 0.6)."""
    early_stopping: bool = True
    """Stop a sentence at beam_size finished hypotheses; false: only when no open one can still win."""
    max_length_ratio: Annotated[float, Field(ge=0)] = 1.5
    """Longest output, as a multiple of the source's tokens (end included); max_length_constant is added."""
    max_length_constant: Annotated[int, Field(ge=0)] = 20
    """Longest output in tokens (end excluded), added to max_length_ratio times the source's tokens."""
    n_best: Annotated[int, Field(ge=1)] = 1
    """Translations returned per sentence: the best of the beam, or that many samples."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling: divides the logits; below 1 sharper, above 1 flatter."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Sampling: only the k most probable tokens; 0 is all."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sampling: only the fewest tokens whose probabilities reach this sum."""
    seed: Annotated[int, Field(ge=0)] = 1
    """Sampling: seed of the draws; with it each line's sample is fixed, whatever the batches (in float32)."""
    max_tokens: Annotated[int, Field(ge=1)] = 4096
    """Source tokens of one batch (sentences x longest); a longer sentence is refused."""

    @model_validator(mode="after")
    def _no_option_without_effect(self) -> Self:
        for name in _IDLE[self.method]:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} has no effect with method = '{self.method}'; remove it")
        if self.method == "beam" and self.n_best > self.beam_size:
            raise ValueError(f"n_best is {self.n_best}, more than beam_size {self.beam_size}")
        return self


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """One finished output."""

    tokens: list[int]
    """Ids without the end of the sentence."""
    log_probability: float
    """Sum over the tokens and the end of the sentence, natural logarithm."""
    score: float
    """`log_probability / length**length_penalty`, the end of the sentence counted."""


@contextmanager
def evaluating(model: TranslationModel) -> Iterator[None]:
    """Switch dropout off inside the block, and back as it was after it."""
    training = model.training
    model.train(False)
    try:
        yield
    finally:
        model.train(training)


def device_of(model: TranslationModel) -> torch.device:
    """Return the device that the weights are on."""
    return next(iter(model.parameters())).device


def check_length(longest: int, max_positions: int | None, *, what: str = "a sentence") -> None:
    """Raise DataError where `longest` tokens (end included) do not fit; None positions are unbounded."""
    if max_positions is not None and longest > max_positions:
        raise DataError(
            f"{what} has {longest:,} tokens with its end, but the model has only {max_positions:,}"
            " positions; split it"
        )


def length_limits(model: TranslationModel, lengths: Tensor, *, config: DecodingConfig) -> Tensor:
    """Return the most tokens (end excluded) of the outputs of sources of `lengths` `[B]` tokens (end included).

    Each depends on its own sentence only, never on the batch. Raises DataError where a source does not fit the model.
    """
    check_length(int(lengths.max()), model.max_positions)
    limits = (lengths * config.max_length_ratio).long() + config.max_length_constant
    return limits if model.max_positions is None else limits.clamp(max=model.max_positions - 1)


def source_lengths(source: Tensor, source_keep: Tensor | None) -> Tensor:
    """Return the tokens `[B]` of each sentence of `source` `[B, S]`, padding excluded."""
    if source_keep is None:
        return torch.full((len(source),), source.shape[1], device=source.device)
    return source_keep.sum(1)
