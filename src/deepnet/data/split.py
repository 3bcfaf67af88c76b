"""Splitting valid and test off a corpus so that no sentence of theirs is in another part, in any language.

Rows that share a sentence on one side, case and punctuation apart, form a group (and so do groups that share one); a
group is never divided. Which groups are held out depends on a hash of their sentences, not on their order.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from deepnet.data.cleaning import normalise
from deepnet.data.text import Row
from deepnet.errors import DataError

TRAIN = -1
_MOST_OF_CORPUS = 20  # a held-out part is at most one such share of the corpus
_MOST_OF_PART = 10  # and a group at most one such share of the part
_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying permutes the 64-bit numbers


def split_by_hash(
    rows: Iterable[Row], *, wanted: Mapping[str, int], sides: Sequence[str] = ("source", "target")
) -> NDArray[np.int8]:
    """Return for each row the index in `wanted` (part -> number of rows) of the part it belongs to, or TRAIN.

    A part gets at most the rows wanted and at most a twentieth of the corpus. `sides` are the names of a row's
    sentences. Raises DataError when nothing can be held out. Memory: about 50 bytes per row.
    """
    sentences = (sentence for row in rows for sentence in row)
    hashes = np.fromiter(map(_hash, sentences), dtype=np.uint64).reshape(-1, len(sides))
    if len(hashes) == 0:
        raise DataError("there are no sentences to split valid and test off; give more text")
    groups = _connect(hashes)
    order, sizes = _shuffle_groups(groups, hashes[:, 0])
    parts = np.full(len(groups), TRAIN, dtype=np.int8)
    start = 0
    for index, (name, number) in enumerate(wanted.items()):
        limit = min(number, len(groups) // _MOST_OF_CORPUS)
        chosen, start = _choose(order, sizes, start, limit)
        if not chosen:
            raise DataError(
                f"cannot split a {name} part off {len(groups):,} lines: they are too few or share too many "
                f"sentences; give files of your own in {' and '.join(f'data.{name}_{s}' for s in sides)}"
            )
        parts[np.isin(groups, chosen)] = index
    return parts


def _hash(sentence: str) -> int:
    digest = hashlib.blake2b(normalise(sentence).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _connect(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return for each row the lowest index among all rows connected to it by equal sentences."""
    sides = [np.unique(side, return_inverse=True)[1] for side in hashes.T]
    labels = np.arange(len(hashes))
    while True:
        before = labels
        for side in sides:
            lowest = np.full(len(labels), len(labels))
            np.minimum.at(lowest, side, labels)
            labels = lowest[side]
        labels = labels[
            labels
        ]  # what a row's label has learnt, the row learns too: long chains close fast
        if np.array_equal(before, labels):
            return labels


def _shuffle_groups(
    groups: NDArray[np.int64], hashes: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the groups in an order given by their sentences alone, and the size of each."""
    names, inverse, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    lowest = np.full(len(names), np.iinfo(np.uint64).max, dtype=np.uint64)
    np.minimum.at(lowest, inverse, hashes)
    order = np.argsort(
        lowest * _MIX, kind="stable"
    )  # mixed: the lowest hash of a large group is low
    return names[order], sizes[order]


def _choose(
    order: NDArray[np.int64], sizes: NDArray[np.int64], start: int, limit: int
) -> tuple[list[int], int]:
    """Take groups from `start` on until `limit` rows are reached; large ones stay in train."""
    chosen, room, index = [], limit, start
    largest = max(limit // _MOST_OF_PART, 1)
    while room > 0 and index < len(order):
        if sizes[index] <= min(room, largest):
            chosen.append(int(order[index]))
            room -= int(sizes[index])
        index += 1
    return chosen, index
