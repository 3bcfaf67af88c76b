"""More keys than fit into memory, brought together on disk: scattered over buckets, then sorted bucket by bucket.

A record is a key, of one number or more, and the number of its row. Keys are hashes, so that their first bits scatter
them evenly; a key that many rows have is in one bucket with all of them, which is why a bucket is read in blocks.
"""

import os
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deepnet.data.keys import KEY_TYPE, Keys
from deepnet.data.mapping import map_file

BLOCK_RECORDS = 1 << 17
"""How many records are held at a time, about."""
_BITS = 64

Records = NDArray[np.uint64]
"""[records, key and row]: the numbers of the key, then that of the row."""
ReadRecords = Callable[[], Iterator[Records]]
"""Returns all records in blocks, in the order of rows, each time it is called."""


def read_records(path: Path, *, width: int, column: int | None = None) -> Iterator[Records]:
    """Yield what a file has of each row, [rows, width], as records; of one column, or of all that make the key."""
    first = 0
    with open(path, "rb") as file:
        while len(numbers := np.fromfile(file, KEY_TYPE, BLOCK_RECORDS * width)):
            keys = numbers.reshape(-1, width)[:, slice(None) if column is None else [column]]
            rows = np.arange(first, first + len(keys), dtype=KEY_TYPE)
            yield np.column_stack([keys, rows])
            first += len(keys)


def find_repeats(read: ReadRecords, *, total: int, work: Path) -> Iterator[NDArray[np.int64]]:
    """Yield, in groups, the rows whose key an earlier row has, of `total` records; `work` is a file to use."""
    for bucket in _buckets(read, total, work):
        known: Records | None = None
        for block in bucket:
            records, ranks = _ranked(block if known is None else np.concatenate([known, block]))
            yield records[ranks > 0, -1].astype(np.int64)
            known = records[ranks == 0]


def sort_records(read: ReadRecords, *, total: int, most: int, work: Path) -> Iterator[Records]:
    """Yield records by key in ascending order, of each key the `most` of the lowest rows; `work` as above."""
    for bucket in _buckets(read, total, work):
        kept: Records | None = None
        for block in bucket:
            records, ranks = _ranked(block if kept is None else np.concatenate([kept, block]))
            kept = records[ranks < most]
        if kept is not None:
            yield kept


class NumbersOnDisk:
    """Numbers of a file, of which a few are read at a time: mapped they would count as memory of the process."""

    def __init__(self, path: Path):
        """Open a file that is not written any more."""
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)
        self.count = os.fstat(self._descriptor).st_size // KEY_TYPE.itemsize

    def read(self, first: int, count: int) -> NDArray[np.uint64]:
        """Return `count` numbers from the `first`-th on, fewer at the end of the file."""
        size = KEY_TYPE.itemsize
        return np.frombuffer(os.pread(self._descriptor, count * size, first * size), KEY_TYPE)


class KeyIndex:
    """Which rows have a key of one number: sorted on disk, and looked up there."""

    def __init__(self, folder: Path, *, most: int):
        """Open what `write` has written with the same `most`."""
        self._keys, self._rows = NumbersOnDisk(folder / "keys"), NumbersOnDisk(folder / "rows")
        self._most = most

    @classmethod
    def write(cls, read: ReadRecords, folder: Path, *, total: int, most: int) -> "KeyIndex":
        """Make the folder, with the `most` lowest rows of each key."""
        folder.mkdir()
        with open(folder / "keys", "wb") as keys, open(folder / "rows", "wb") as rows:
            for records in sort_records(read, total=total, most=most, work=folder / "buckets"):
                keys.write(records[:, 0].tobytes())
                rows.write(records[:, 1].tobytes())
        return cls(folder, most=most)

    def find(self, key: int) -> list[int]:
        """Return the rows with a key, in ascending order."""
        places = range(self._keys.count)
        first = bisect_left(places, key, key=lambda place: int(self._keys.read(place, 1)[0]))
        number = int((self._keys.read(first, self._most) == key).sum())
        rows: list[int] = self._rows.read(first, number).tolist()
        return rows


def is_known(keys: Keys, folder: Path) -> NDArray[np.bool_]:
    """Return which keys the index in a folder has."""
    known = map_file(folder / "keys", KEY_TYPE)
    places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.asarray(known[places] == keys)


def _ranked(records: Records) -> tuple[Records, NDArray[np.int64]]:
    """Return records sorted by key, and the place of each among those with the same key, which keep their order."""
    records = records[np.lexsort(records[:, -2::-1].T)]
    keys, places = records[:, :-1], np.arange(len(records))
    begins = np.ones(len(records), dtype=bool)
    begins[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    return records, places - np.maximum.accumulate(np.where(begins, places, 0))


def _buckets(read: ReadRecords, total: int, work: Path) -> Iterator[Iterator[Records]]:
    """Scatter records over buckets in a file; yield each bucket that has any, the lowest keys first, in blocks."""
    bits = max((total - 1) // BLOCK_RECORDS, 0).bit_length()
    sizes = np.zeros(1 << bits, dtype=np.int64)
    width = 0
    for block in read():
        sizes += np.bincount(_bucket(block, bits), minlength=len(sizes))
        width = block.shape[1]
    ends = np.cumsum(sizes)
    try:
        _scatter(read, bits, work, places=ends - sizes)
        for start, end in pairwise([0, *ends.tolist()]):
            if start < end:
                yield _read_bucket(work, start, end, width)
    finally:
        work.unlink(missing_ok=True)


def _bucket(records: Records, bits: int) -> NDArray[np.int64]:
    return (records[:, 0] >> np.uint64(_BITS - 1 - bits) >> np.uint64(1)).astype(np.int64)


def _scatter(read: ReadRecords, bits: int, work: Path, *, places: NDArray[np.int64]) -> None:
    """Write each record into its bucket, behind those before it; `places` are where the buckets begin, in records."""
    with open(work, "wb") as file:
        for block in read():
            buckets = _bucket(block, bits)
            counts = np.bincount(buckets, minlength=len(places))
            block = block[np.argsort(buckets, kind="stable")]
            ends = np.cumsum(counts)
            for index in np.flatnonzero(counts).tolist():
                part = block[ends[index] - counts[index] : ends[index]]
                file.seek(int(places[index]) * part[0].nbytes)
                file.write(part.tobytes())
            places = places + counts


def _read_bucket(work: Path, start: int, end: int, width: int) -> Iterator[Records]:
    with open(work, "rb") as file:
        file.seek(start * width * KEY_TYPE.itemsize)
        for first in range(start, end, BLOCK_RECORDS):
            count = min(BLOCK_RECORDS, end - first)
            yield np.fromfile(file, KEY_TYPE, count * width).reshape(count, width)
