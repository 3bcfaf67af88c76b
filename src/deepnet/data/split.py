"""Splitting valid and test off a corpus so that no sentence of theirs is in another part, in any language.

Rows that share a sentence on one side, case and punctuation apart, form a group (and so do groups that share one); a
group is never divided. Which groups are held out depends on a hash of their sentences, not on their order.

Groups are taken in the order of their lowest source key, mixed. So only the few that come first are ever put together,
row by row, from indexes on disk; a group is given up as soon as it has a lower key or too many rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deepnet.data.keys import KEY_TYPE
from deepnet.data.sorting import (
    BLOCK_RECORDS,
    KeyIndex,
    NumbersOnDisk,
    Records,
    read_records,
    sort_records,
)
from deepnet.errors import DataError

TRAIN = -1
LEFT_OUT = -2
"""The part of a row that is in none."""
Parts = NDArray[np.int8]
"""Of each row the part it belongs to."""
_MOST_OF_CORPUS = 20  # a held-out part is at most one such share of the corpus
_MOST_OF_PART = 10  # and a group at most one such share of the part
_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying permutes the 64-bit numbers


def split_by_hash(
    sentences: Path,
    parts: Parts,
    *,
    wanted: Mapping[str, int],
    sides: Sequence[str] = ("source", "target"),
) -> dict[str, int]:
    """Give rows of TRAIN to the parts that are `wanted` (part -> number of rows); return how many each gets.

    `sentences` is a file of the rows' keys [rows, sides], beside which others are made for a while; `parts` then has
    the index in `wanted`. A part gets at most the rows wanted and at most a twentieth of TRAIN. `sides` are the names
    of a row's sentences. Raises DataError when nothing can be held out. Memory does not grow with the rows.
    """
    total = _count_train(parts)
    if not total:
        raise DataError("there are no sentences to split valid and test off; give more text")
    limits = [min(number, total // _MOST_OF_CORPUS) for number in wanted.values()]
    groups = _Groups.read(sentences, parts, total, len(sides), max(map(_largest_group, limits)))
    waiting = groups.in_order()
    sizes = {}
    for index, (name, limit) in enumerate(zip(wanted, limits, strict=True)):
        size = 0
        while size < limit and (group := next(waiting, None)):
            if len(group) <= min(limit - size, _largest_group(limit)):
                parts[group] = index
                size += len(group)
        if not size:
            raise DataError(
                f"cannot split a {name} part off {total:,} lines: they are too few or share too many "
                f"sentences; give files of your own in {' and '.join(f'data.{name}_{s}' for s in sides)}"
            )
        sizes[name] = size
    return sizes


@dataclass(frozen=True)
class _Groups:
    """Rows of TRAIN that belong together."""

    keys: NumbersOnDisk
    """[rows, sides]"""
    indexes: tuple[KeyIndex, ...]
    """The rows of each key of a side, one more than the largest group has where there are so many."""
    largest: int
    """Rows of the largest group that may be held out."""
    order: Iterator[Records]
    """The first row of each source key, by the key, mixed: the lowest key of a large group is low."""

    @classmethod
    def read(cls, sentences: Path, parts: Parts, total: int, sides: int, largest: int) -> "_Groups":
        reads = [partial(_train_records, sentences, parts, sides, side) for side in range(sides)]
        indexes = [
            KeyIndex.write(read, sentences.with_name(f"side{side}"), total=total, most=largest + 1)
            for side, read in enumerate(reads)
        ]
        order = sort_records(
            lambda: map(_mixed, reads[0]()),
            total=total,
            most=1,
            work=sentences.with_name("order"),
        )
        return cls(NumbersOnDisk(sentences), tuple(indexes), largest, order)

    def in_order(self) -> Iterator[list[int]]:
        """Yield the groups that are not too large, in an order given by their sentences alone."""
        for records in self.order:
            for row in records[:, 1].tolist():
                if group := self._led_by(row):
                    yield group

    def _led_by(self, row: int) -> list[int]:
        """Return the rows connected to one; none where one has a lower source key, or where they are too many."""
        lowest = self._keys_of(row)[0]
        group, waiting = {row}, [row]
        while waiting:
            for key, index in zip(self._keys_of(waiting.pop()), self.indexes, strict=True):
                new = set(index.find(key)) - group
                group |= new
                waiting += new
                if len(group) > self.largest or any(self._keys_of(row)[0] < lowest for row in new):
                    return []
        return list(group)

    def _keys_of(self, row: int) -> list[int]:
        sides = len(self.indexes)
        keys: list[int] = self.keys.read(row * sides, sides).tolist()
        return keys


def _largest_group(limit: int) -> int:
    return max(limit // _MOST_OF_PART, 1)


def _count_train(parts: Parts) -> int:
    blocks = range(0, len(parts), BLOCK_RECORDS)
    return sum(int((parts[first : first + BLOCK_RECORDS] == TRAIN).sum()) for first in blocks)


def _train_records(sentences: Path, parts: Parts, sides: int, side: int) -> Iterator[Records]:
    for records in read_records(sentences, width=sides, column=side):
        yield records[parts[records[:, -1].astype(np.int64)] == TRAIN]


def _mixed(records: Records) -> Records:
    return records * np.array([_MIX, 1], dtype=KEY_TYPE)
