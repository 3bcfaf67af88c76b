"""Sentences as ids: whole blocks at a time, in any process."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deepnet.data.split import TRAIN, Parts
from deepnet.data.text import Span, joined_lines
from deepnet.data.tokenizer import EOS, Tokenizers

IdType = np.dtype[np.uint16] | np.dtype[np.uint32]


@dataclass(frozen=True)
class EncodedRows:
    """Rows as ids: the sentences follow one another (of pairs source and target in turn), each ending in eos."""

    ids: NDArray[np.uint16] | NDArray[np.uint32]
    lengths: NDArray[np.int64]
    """[rows, sides], eos included."""
    too_long: int
    """How many other rows were left out because a sentence is too long."""

    def __getitem__(self, rows: slice) -> "EncodedRows":
        """Return some of the rows; none left out."""
        ends = np.concatenate([[0], np.cumsum(self.lengths.sum(axis=1))])
        first, last, _ = rows.indices(len(self.lengths))
        return EncodedRows(self.ids[ends[first] : ends[last]], self.lengths[rows], 0)


def encode_rows(
    sides: Sequence[list[str]],
    *,
    tokenizers: Tokenizers,
    max_length: int,
    num_threads: int | None = None,
) -> EncodedRows:
    """Return the ids of rows, given side by side, but of those with a sentence of more than `max_length` with eos."""
    both = (tokenizers.source, tokenizers.target)[: len(sides)]  # a text has one side
    encoded = [
        tokenizer.encode(side, num_threads=num_threads)
        for tokenizer, side in zip(both, sides, strict=True)
    ]
    lengths = np.array([list(map(len, side)) for side in encoded], dtype=np.int64).T + 1
    fits = np.asarray((lengths <= max_length).all(axis=1))
    rows = compress(zip(*encoded, strict=True), fits.tolist())
    lengths = lengths[fits]
    return EncodedRows(
        _joined(chain.from_iterable(rows), lengths.ravel(), id_type(t.vocab_size for t in both)),
        lengths,
        too_long=int((~fits).sum()),
    )


def id_type(vocab_sizes: Iterable[int]) -> IdType:
    """Return the smaller type that holds every vocabulary, little-endian."""
    return np.dtype("<u2") if max(vocab_sizes) <= 1 << 16 else np.dtype("<u4")


def _joined(
    sentences: Iterable[list[int]], lengths: NDArray[np.int64], dtype: IdType
) -> NDArray[np.uint16] | NDArray[np.uint32]:
    """Return sentences, of these lengths with eos, one after the other with eos behind each."""
    ids = np.full(lengths.sum(), EOS, dtype)
    is_text = np.ones(len(ids), dtype=bool)
    is_text[np.cumsum(lengths) - 1] = False
    ids[is_text] = np.fromiter(chain.from_iterable(sentences), dtype)
    return ids


@dataclass(frozen=True)
class SplitSpan:
    """A span of cleaned text, and the part that each of its rows belongs to."""

    span: Span
    parts: Parts


@dataclass(frozen=True)
class EncodedSpan:
    """The rows of a span: as ids those to train on, as text those of other parts."""

    train: EncodedRows
    held_out: dict[int, tuple[bytes, ...]]
    """By part the sentences of each side, one per line."""


@dataclass(frozen=True)
class SpanEncoder:
    """What is done with a span of cleaned text, whichever process does it."""

    paths: tuple[Path, ...]
    """The files that the spans are of, one per side."""
    tokenizers: Tokenizers
    max_length: int

    def __call__(self, task: SplitSpan) -> EncodedSpan:
        """Return the rows of TRAIN as ids and those of the parts that are numbered from 0 on as text."""
        sides = [task.span.read(path, side) for side, path in enumerate(self.paths)]
        train = encode_rows(
            _rows_of(TRAIN, task.parts, sides),
            tokenizers=self.tokenizers,
            max_length=self.max_length,
            num_threads=1,  # there is a process for each core
        )
        others = [part for part in np.unique(task.parts).tolist() if part >= 0]
        held_out = {part: _rows_of(part, task.parts, sides) for part in others}
        return EncodedSpan(
            train, {part: tuple(map(joined_lines, text)) for part, text in held_out.items()}
        )


def _rows_of(part: int, parts: Parts, sides: Sequence[list[str]]) -> list[list[str]]:
    chosen = (parts == part).tolist()
    return [list(compress(side, chosen)) for side in sides]
