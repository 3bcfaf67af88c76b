"""Binarised text, read in place: opening costs nothing, whatever the size."""

from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from deepnet.config import build
from deepnet.data.binarize import (
    FORMAT,
    FORMAT_VERSION,
    HEADER_FILE,
    Header,
    shard_path,
)
from deepnet.data.mapping import map_file
from deepnet.data.tokenizer import EOS, Tokenizers
from deepnet.errors import ConfigError, DataError
from deepnet.seal import Seal, find_damage, read_json

Ids = NDArray[np.uint16] | NDArray[np.uint32]
Offsets = NDArray[np.int64]
Indices = NDArray[np.int64]


class Rows(Protocol):
    """What training needs of a text: rows of one or two sentences as ids, in one direction or many."""

    @property
    def header(self) -> Header:
        """What is in it: its sides, the longest sentence."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def lengths(self, start: int = 0, stop: int | None = None) -> tuple[Indices, ...]:
        """Return the lengths of each side, eos included, of rows `start` to `stop`."""

    def padded(self, rows: Indices) -> list[tuple[Indices, NDArray[np.bool_]]]:
        """Return each side of some rows [B, longest], padding behind each sentence, and True where there is none."""

    def starts(self, rows: Indices) -> Indices:
        """Return [B] the ids from which the prediction of the last side starts."""

    def of_epoch(self, *, seed: int, epoch: int) -> "Rows":
        """Return the rows that an epoch has."""


class TextDataset:
    """Rows of sentences as ids, one per side; each sentence ends in eos.

    A file is checked when it is first looked at: by its checksum where the folder has them, and for offsets that
    ascend and ids that the vocabularies have. That reads it once, at about 1 GB/s.
    """

    def __init__(self, folder: str | Path, *, tokenizers: Tokenizers | None = None):
        """Open a folder written by `binarize`.

        Raises DataError when it is unfinished, of another format version, damaged, or (where `tokenizers` are
        given) made with others; reading rows raises it for a damaged file of theirs.
        """
        self.folder = Path(folder)
        self.header: Header = read_header(self.folder)
        if tokenizers is not None:
            _check_fingerprints(self.folder, self.header, tokenizers)
        _check_sizes(self.folder, self.header)
        self._seal = Seal(self.folder)
        self._starts = np.cumsum([0, *(shard.rows for shard in self.header.shards)])
        self._offsets: dict[int, Offsets] = {}
        self._ids: dict[int, Ids] = {}

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.header.rows

    def __getitem__(self, index: int) -> tuple[Ids, ...]:
        """Return the ids of each sentence of row `index` as read-only views on the file."""
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        shard = int(np.searchsorted(self._starts, index, side="right")) - 1
        ids, offsets = self._ids_of(shard), self._offsets_of(shard)
        sides = len(self.header.sides)
        first = sides * (index - int(self._starts[shard]))
        ends = offsets[first : first + sides + 1].tolist()
        return tuple(ids[start:end] for start, end in pairwise(ends))

    def padded(self, rows: Indices) -> list[tuple[Indices, NDArray[np.bool_]]]:
        """Return each side of some rows [B, longest], padding behind each sentence, and True where there is none."""
        shards = np.searchsorted(self._starts, rows, side="right") - 1
        of_shards = [(shard, shards == shard) for shard in np.unique(shards).tolist()]
        ends = np.empty((len(rows), len(self.header.sides) + 1), np.int64)
        for shard, mine in of_shards:
            first = len(self.header.sides) * (rows[mine] - self._starts[shard])
            ends[mine] = self._offsets_of(shard)[first[:, None] + np.arange(ends.shape[1])]
        sides = []
        for (start, end), side in zip(pairwise(ends.T), self.header.sides, strict=True):
            places = start[:, None] + np.arange((end - start).max())
            real = places < end[:, None]
            ids = np.full(real.shape, side.pad, dtype=np.int64)
            for shard, mine in of_shards:
                chosen = real & mine[:, None]
                ids[chosen] = self._ids_of(shard)[places[chosen]]
            sides.append((ids, real))
        return sides

    def starts(self, rows: Indices) -> Indices:
        """Return [B] padding, from which every translation starts."""
        return np.full(len(rows), self.header.sides[-1].pad)

    def of_epoch(self, *, seed: int, epoch: int) -> "TextDataset":
        """Return the text itself: every epoch has all rows once."""
        return self

    def lengths(self, start: int = 0, stop: int | None = None) -> tuple[NDArray[np.int64], ...]:
        """Return the lengths of each side, eos included, of rows `start` to `stop`; loads no ids."""
        sides = len(self.header.sides)
        stop = len(self) if stop is None else min(stop, len(self))
        first, last = np.searchsorted(self._starts, (start, stop), side="right").tolist()
        parts = [np.empty((0, sides), np.int64)]
        for shard in range(first - 1, min(last, len(self.header.shards))):
            low = max(start - int(self._starts[shard]), 0)
            high = min(stop - int(self._starts[shard]), self.header.shards[shard].rows)
            if low < high:
                offsets = self._offsets_of(shard)[sides * low : sides * high + 1]
                parts.append(np.diff(offsets).reshape(-1, sides))
        return tuple(np.concatenate(parts).T)

    def _offsets_of(self, shard: int) -> Offsets:
        if shard not in self._offsets:
            path = shard_path(self.folder, shard, "offsets")
            offsets = self._map(path, np.dtype("<i8"))
            _check_offsets(path, offsets, self.header.shards[shard].ids)
            self._offsets[shard] = offsets
        return self._offsets[shard]

    def _ids_of(self, shard: int) -> Ids:
        if shard not in self._ids:
            path = shard_path(self.folder, shard, "ids")
            ids = self._map(path, self.header.dtype)
            _check_ids(path, ids, self._offsets_of(shard), self.header)
            self._ids[shard] = ids
        return self._ids[shard]

    def _map(self, path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
        if damage := self._seal.find_damage(path):
            raise DataError(damage)
        try:
            return map_file(path, dtype)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def read_header(folder: str | Path) -> Header:
    """Read the header of a folder of shards; raises DataError when it is missing, foreign or of another version."""
    path = Path(folder) / HEADER_FILE
    if damage := find_damage(path):
        raise DataError(damage)
    try:
        data = read_json(path)
    except OSError as error:
        raise DataError(
            f"{folder} holds no prepared text (no {HEADER_FILE}); prepare the data again"
        ) from error
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}; prepare the data again") from error
    return _parse_header(path, data)


def _parse_header(path: Path, data: Any) -> Header:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise DataError(f"{path} does not describe prepared text; prepare the data again")
    if data.get("format_version") != FORMAT_VERSION:
        raise DataError(
            f"{path} has format version {data.get('format_version')}, this deepnet reads "
            f"{FORMAT_VERSION}; prepare the data again"
        )
    if set(data) != {field.name for field in fields(Header)}:
        raise DataError(f"{path} lacks keys or has foreign ones; prepare the data again")
    try:
        return build(Header, data)
    except ConfigError as error:
        first = str(error).splitlines()[0]
        raise DataError(f"{path} is damaged: {first}; prepare the data again") from error


def _check_fingerprints(folder: Path, header: Header, tokenizers: Tokenizers) -> None:
    given = (("source", tokenizers.source), ("target", tokenizers.target))
    for side, (name, tokenizer) in zip(header.sides, given, strict=False):  # a text has one side
        stored, other = side.fingerprint, tokenizer.fingerprint
        if stored != other or side.vocab_size != tokenizer.vocab_size:
            raise DataError(
                f"{folder} was made with another {name} tokenizer ({stored[:12]}, not {other[:12]}); "
                "prepare the data again with this one"
            )


def _check_sizes(folder: Path, header: Header) -> None:
    if not header.shards:
        raise DataError(f"{folder} holds no sentences; give more text or looser cleaning")
    for index, shard in enumerate(header.shards):
        offsets = len(header.sides) * shard.rows + 1
        expected = {"ids": shard.ids * header.dtype.itemsize, "offsets": 8 * offsets}
        for suffix, size in expected.items():
            path = shard_path(folder, index, suffix)
            actual = path.stat().st_size if path.exists() else 0
            if actual != size:
                raise DataError(
                    f"{path} has {actual:,} bytes instead of {size:,}: it is damaged; "
                    "delete the folder and prepare the data again"
                )


def _check_offsets(path: Path, offsets: Offsets, num_ids: int) -> None:
    if offsets[0] != 0 or offsets[-1] != num_ids or np.any(offsets[1:] <= offsets[:-1]):
        raise DataError(
            f"{path} is damaged: the sentences' ends do not ascend to {num_ids:,}; "
            "delete the folder and prepare the data again"
        )


def _check_ids(path: Path, ids: Ids, offsets: Offsets, header: Header) -> None:
    """Raise DataError where a sentence has an id that its vocabulary lacks, or does not end where it should."""
    largest = np.maximum.reduceat(ids, offsets[:-1]) if len(ids) else ids
    sides = len(header.sides)
    beyond = any(np.any(largest[i::sides] >= side.pad) for i, side in enumerate(header.sides))
    if beyond or np.any(ids[offsets[1:] - 1] != EOS):
        raise DataError(
            f"{path} is damaged: it has ids that the vocabulary lacks, or sentences without an end; "
            "delete the folder and prepare the data again"
        )
