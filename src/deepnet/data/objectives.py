"""What a model learns from rows of ids: a translation, the next token of a text, or the masked tokens of a text.

An objective turns rows into what the model reads and what it is to predict. It also counts the tokens to predict from
lengths alone, because a process divides its loss by those of every process, whose batches it never builds.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepnet.data.batching import Indices
from deepnet.data.dataset import Rows
from deepnet.data.tokenizer import EOS, UNK

MASKED_SHARE = 0.15
"""Share of a sentence's tokens that are to be predicted from the others."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_CHOICE, _REPLACEMENT, _TOKEN = range(3)
"""What random bits are drawn for."""


@dataclass(frozen=True)
class Batch:
    """One micro-batch; B sentences, S and T the longest source and target with eos."""

    source: Tensor
    """[B, S] int64, pad where padding: what an encoder reads, or the decoder of a model that has no encoder."""
    source_keep: Tensor | None
    """[B, S] bool, True = may be attended; None when nothing is padding, or all of it lies in the future."""
    target_in: Tensor | None
    """[B, T] int64, pad or a tag, then the target without its last id; None where the model reads one text."""
    target_out: Tensor
    """[B, T] int64, what is to be predicted; pad where nothing is."""
    num_tokens: int
    """Tokens to predict."""
    num_source_tokens: int
    """Source tokens that are not padding."""

    @property
    def num_padded_tokens(self) -> int:
        """Tokens that the model reads on both sides, padding included."""
        return self.source.numel() + (0 if self.target_in is None else self.target_in.numel())

    def to(self, device: torch.device | str) -> "Batch":
        """Return the batch with its tensors on `device`; CUDA fetches what is pinned while the caller goes on."""
        waits = torch.device(device).type != "cuda"
        return self._changed(lambda tensor: tensor.to(device, non_blocking=not waits))

    def pinned(self) -> "Batch":
        """Return the batch in pinned memory; needs CUDA."""
        return self._changed(lambda tensor: tensor.pin_memory())

    def _changed(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        keep, target_in = self.source_keep, self.target_in
        return replace(
            self,
            source=change(self.source),
            source_keep=None if keep is None else change(keep),
            target_in=None if target_in is None else change(target_in),
            target_out=change(self.target_out),
        )


class Objective(Protocol):
    """How rows become batches."""

    def num_tokens(self, lengths: Indices) -> int:
        """Return the number of tokens to predict in rows whose last side has these lengths, eos included."""

    def batch(self, dataset: Rows, rows: Indices, *, epoch: int) -> Batch:
        """Return the tensors of the given rows as they are seen in an epoch."""


@dataclass(frozen=True)
class Translation:
    """Predict each token of the target, eos too, from the source and the target so far, which starts from padding.

    Where there are many languages it may start from the tag of the target's. A model may read eos in place of padding
    (`TransformerConfig.decoder_start`).
    """

    def num_tokens(self, lengths: Indices) -> int:
        """Return the target's tokens."""
        return int(lengths.sum())

    def batch(self, dataset: Rows, rows: Indices, *, epoch: int) -> Batch:
        """Return sources, and targets with themselves one place later; every epoch sees the same."""
        (source, keep), (target, real) = dataset.padded(rows)
        return Batch(
            source=torch.from_numpy(source),
            source_keep=None if keep.all() else torch.from_numpy(keep),
            target_in=torch.from_numpy(_shifted(target, dataset.starts(rows)[:, None])),
            target_out=torch.from_numpy(target),
            num_tokens=int(real.sum()),
            num_source_tokens=int(keep.sum()),
        )


@dataclass(frozen=True)
class NextToken:
    """Predict each token of a line, eos too, from those before it; a line starts from the eos of the one before.

    Not from padding, whose embedding is zero: with rotary positions nothing would be added to it, and the gradient of
    a norm at zero grows without bound with depth.
    """

    def num_tokens(self, lengths: Indices) -> int:
        """Return the line's tokens."""
        return int(lengths.sum())

    def batch(self, dataset: Rows, rows: Indices, *, epoch: int) -> Batch:
        """Return lines, and themselves one place later; every epoch sees the same."""
        ((line, real),) = dataset.padded(rows)
        return Batch(
            source=torch.from_numpy(_shifted(line, EOS)),
            source_keep=None,  # padding follows the tokens, and what follows is hidden anyway
            target_in=None,
            target_out=torch.from_numpy(line),
            num_tokens=int(real.sum()),
            num_source_tokens=int(real.sum()),
        )


@dataclass(frozen=True)
class MaskedTokens:
    """Predict some tokens of a line from all others: 15%, at least one, never eos unless there is nothing else.

    Of those, 80% are replaced by the mask, 10% by a random token and 10% left as they are. What is masked is a pure
    function of (seed, epoch, row), whatever the batch, the update and the process. Source: Devlin et al., BERT, arXiv
    1810.04805, section 3.1 and appendix A.1.
    """

    mask: int
    """The id of the mask."""
    seed: int

    def num_tokens(self, lengths: Indices) -> int:
        """Return the number of tokens that are chosen."""
        return int(_num_chosen(lengths).sum())

    def batch(self, dataset: Rows, rows: Indices, *, epoch: int) -> Batch:
        """Return lines with tokens masked, and those tokens."""
        ((line, keep),) = dataset.padded(rows)
        chosen = self._choose(keep, rows, epoch)
        tenth = self._bits(_REPLACEMENT, line.shape, rows, epoch) % 10
        masked = np.where(chosen & (tenth < 8), self.mask, line)
        tokens = self._random_tokens(dataset, line.shape, rows, epoch)
        return Batch(
            source=torch.from_numpy(np.where(chosen & (tenth == 8), tokens, masked)),
            source_keep=None if keep.all() else torch.from_numpy(keep),
            target_in=None,
            target_out=torch.from_numpy(np.where(chosen, line, dataset.header.sides[0].pad)),
            num_tokens=int(chosen.sum()),
            num_source_tokens=int(keep.sum()),
        )

    def _choose(self, keep: NDArray[np.bool_], rows: Indices, epoch: int) -> NDArray[np.bool_]:
        """Return [B, S], True at the tokens to predict: those of the lowest random numbers in each line."""
        lengths = keep.sum(axis=1)
        bits = self._bits(_CHOICE, keep.shape, rows, epoch)
        bits[np.arange(keep.shape[1]) >= _num_candidates(lengths)[:, None]] = np.iinfo(
            bits.dtype
        ).max
        places = bits.argsort(axis=1, kind="stable").argsort(axis=1)
        return np.asarray(places < _num_chosen(lengths)[:, None])

    def _random_tokens(
        self, dataset: Rows, shape: tuple[int, ...], rows: Indices, epoch: int
    ) -> Indices:
        """Return [B, S] ids, each equally likely: any but eos, unk, the mask and padding."""
        first, last = (
            UNK + 1,
            dataset.header.sides[0].vocab_size - 2,
        )  # one fewer: the mask is left out
        bits = self._bits(_TOKEN, shape, rows, epoch) % max(last - first, 1)
        ids = bits.astype(np.int64) + first
        return np.asarray(ids + (ids >= self.mask))

    def _bits(
        self, purpose: int, shape: tuple[int, ...], rows: Indices, epoch: int
    ) -> NDArray[np.uint64]:
        """Return 64 random bits for each place [B, S]: a hash of seed, epoch, row, place in the line and purpose."""
        bits = np.zeros(shape, dtype=np.uint64)
        for key in (self.seed, epoch, rows[:, None], np.arange(shape[1]), purpose):
            bits = _mixed(bits ^ np.asarray(key, dtype=np.uint64))
        return bits


def _num_candidates(lengths: Indices) -> Indices:
    return np.maximum(lengths - 1, 1)


def _num_chosen(lengths: Indices) -> Indices:
    """Return how many tokens of lines of these lengths, eos included, are to be predicted."""
    rounded = np.rint(MASKED_SHARE * _num_candidates(lengths)).astype(np.int64)
    return np.asarray(np.maximum(rounded, 1))


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the output of SplitMix64 at each state (Steele, Lea and Flood, doi 10.1145/2714064.2660195)."""
    bits = bits + _GOLDEN
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _shifted(target: Indices, first: Indices | int) -> Indices:
    """Return `target` [B, T] one place later, `first` ([B, 1], or one for all) before it, without its last place."""
    before = np.broadcast_to(first, (len(target), 1))
    return np.concatenate([before, target[:, :-1]], axis=1)
