"""Many directions as one text: rows of prepared pairs, found by number; nothing is copied, nothing held per row.

Row k of a direction in an epoch is row (first + k) mod size of its pair, so that an epoch is a few numbers per
direction. How many rows it has follows from the temperature; where it begins, from the seed and the epochs before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from deepnet.data.binarize import Header, Shard, Side
from deepnet.data.dataset import TextDataset
from deepnet.data.directions import Direction
from deepnet.data.mixing import epoch_counts, epoch_start

T = TypeVar("T")
Indices = NDArray[np.int64]
Padded = tuple[Indices, NDArray[np.bool_]]
"""Ids [B, longest], and True where they are no padding."""


@dataclass(frozen=True)
class DirectedText:
    """A prepared pair, read in one direction, with the tag of its target language."""

    direction: Direction
    pair: TextDataset
    """Its sides are in alphabetical order of the languages."""
    tag: int
    tags_source: bool
    """Whether every source begins with the tag."""
    tags_decoder: bool
    """Whether the decoder starts from the tag, not from padding."""

    @property
    def start(self) -> int:
        """The id that the decoder starts from."""
        return self.tag if self.tags_decoder else self.pair.header.sides[0].pad

    @cached_property
    def sides(self) -> tuple[Side, Side]:
        """What is known of source and target; tokens count the tags in the source."""
        source, target = self._directed(self.pair.header.sides)
        tags = len(self.pair) * self.tags_source
        return replace(source, tokens=source.tokens + tags), target

    def lengths(self, start: int, stop: int) -> tuple[Indices, Indices]:
        """Return the lengths of source and target, eos and tag included, of rows `start` to `stop`."""
        source, target = self._directed(self.pair.lengths(start, stop))
        return source + int(self.tags_source), target

    def padded(self, rows: Indices) -> tuple[Padded, Padded]:
        """Return source and target of some rows, the tag in front of the source where it stands there."""
        source, target = self._directed(self.pair.padded(rows))
        return (_with_tag(source, self.tag) if self.tags_source else source), target

    def _directed(self, sides: Sequence[T]) -> tuple[T, T]:
        first, second = sides
        return (first, second) if self.direction.source < self.direction.target else (second, first)


@dataclass(frozen=True)
class Drawn:
    """What an epoch has of a direction: `count` rows, from row `first` on, and again from row 0 after the last."""

    text: DirectedText
    first: int
    count: int


class MixedText:
    """Rows of many directions, one direction after the other; the same to a loader as the rows of one.

    `temperature` says how evenly `of_epoch` draws from the directions.
    """

    def __init__(self, drawn: Sequence[Drawn], *, temperature: float = 1.0):
        self.drawn, self.temperature = tuple(drawn), temperature
        self._starts = np.cumsum([0, *(one.count for one in self.drawn)])

    @classmethod
    def of(cls, texts: Sequence[DirectedText], *, temperature: float = 1.0) -> "MixedText":
        """Return every row of some directions, once each."""
        return cls([Drawn(text, 0, len(text.pair)) for text in texts], temperature=temperature)

    def of_epoch(self, *, seed: int, epoch: int) -> "MixedText":
        """Return the rows of an epoch: as many as there are in all, drawn from the directions by the temperature.

        A direction goes on where it stopped in the epoch before, so that its rows are seen equally often.
        """
        sizes = [len(one.text.pair) for one in self.drawn]
        counts = epoch_counts(sizes, temperature=self.temperature, total=sum(sizes))
        drawn = [
            Drawn(one.text, epoch_start(size, count, seed=seed, epoch=epoch, corpus=number), count)
            for number, (one, size, count) in enumerate(zip(self.drawn, sizes, counts, strict=True))
        ]
        return MixedText(drawn, temperature=self.temperature)

    @cached_property
    def header(self) -> Header:
        """What is in all rows together, each once; lengths and tokens count the tags in the source."""
        texts = [one.text for one in self.drawn]
        tokens = [sum(text.sides[side].tokens for text in texts) for side in range(2)]
        sides = [
            replace(texts[0].sides[side], language="", tokens=n) for side, n in enumerate(tokens)
        ]
        return Header(
            sides=(sides[0], sides[1]),
            longest=max(text.pair.header.longest + int(text.tags_source) for text in texts),
            too_long=sum(text.pair.header.too_long for text in texts),
            shards=(Shard(rows=len(self), ids=sum(tokens)),),
        )

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._starts[-1])

    def lengths(self, start: int = 0, stop: int | None = None) -> tuple[Indices, ...]:
        """Return the lengths of source and target, eos and tag included, of rows `start` to `stop`."""
        stop = len(self) if stop is None else min(stop, len(self))
        parts = [(np.empty(0, np.int64),) * 2]
        for one, begin in zip(self.drawn, self._starts.tolist(), strict=False):
            low, high = max(start - begin, 0), min(stop - begin, one.count)
            while low < high:
                row = (one.first + low) % len(one.text.pair)
                end = min(row + high - low, len(one.text.pair))
                parts.append(one.text.lengths(row, end))
                low += end - row
        source, target = (np.concatenate(side) for side in zip(*parts, strict=True))
        return source, target

    def padded(self, rows: Indices) -> list[Padded]:
        """Return source and target of some rows [B, longest], padding behind, and True where there is none."""
        found = [(mine, one.text.padded(own)) for one, mine, own in self._by_direction(rows)]
        pads = [side.pad for side in self.header.sides]
        return [
            _assembled([(mine, sides[side]) for mine, sides in found], len(rows), pad)
            for side, pad in enumerate(pads)
        ]

    def starts(self, rows: Indices) -> Indices:
        """Return [B] the ids that the decoder starts from."""
        ids = np.empty(len(rows), np.int64)
        for one, mine, _ in self._by_direction(rows):
            ids[mine] = one.text.start
        return ids

    def _by_direction(self, rows: Indices) -> list[tuple[Drawn, NDArray[np.bool_], Indices]]:
        """Return of each direction that some rows are of which of them, and their numbers in its pair."""
        numbers = np.searchsorted(self._starts, rows, side="right") - 1
        found = []
        for number in np.unique(numbers).tolist():
            one, mine = self.drawn[number], numbers == number
            own = (one.first + rows[mine] - self._starts[number]) % len(one.text.pair)
            found.append((one, mine, own))
        return found


def _with_tag(side: Padded, tag: int) -> Padded:
    ids, real = side
    before = np.full((len(ids), 1), tag)
    return np.concatenate([before, ids], axis=1), np.concatenate([before == tag, real], axis=1)


def _assembled(parts: Sequence[tuple[NDArray[np.bool_], Padded]], size: int, pad: int) -> Padded:
    """Return rows [size, longest] whose ids come in parts, each with the rows that are its."""
    longest = max(ids.shape[1] for _, (ids, _) in parts)
    ids = np.full((size, longest), pad, dtype=np.int64)
    real = np.zeros((size, longest), dtype=bool)
    for mine, (own, own_real) in parts:
        ids[mine, : own.shape[1]] = own
        real[mine, : own.shape[1]] = own_real
    return ids, real
