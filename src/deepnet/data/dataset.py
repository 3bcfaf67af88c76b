"""Binarised text, read in place: opening costs nothing, whatever the size."""

import json
from dataclasses import fields
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepnet.data.binarize import (
    FORMAT,
    FORMAT_VERSION,
    HEADER_FILE,
    Header,
    Shard,
    Side,
    shard_path,
)
from deepnet.data.tokenizer import Tokenizers
from deepnet.errors import DataError

Ids = NDArray[np.uint16] | NDArray[np.uint32]


class TextDataset:
    """Rows of sentences as ids, one per side; each sentence ends in eos."""

    def __init__(self, folder: str | Path, *, tokenizers: Tokenizers | None = None):
        """Open a folder written by `binarize`.

        Raises DataError when it is unfinished, of another format version, damaged, or (where `tokenizers` are
        given) made with others.
        """
        self.folder = Path(folder)
        self.header = read_header(self.folder)
        if tokenizers is not None:
            _check_fingerprints(self.folder, self.header, tokenizers)
        _check_sizes(self.folder, self.header)
        self._starts = np.cumsum([0, *(shard.rows for shard in self.header.shards)])

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.header.rows

    def __getitem__(self, index: int) -> tuple[Ids, ...]:
        """Return the ids of each sentence of row `index` as read-only views on the file."""
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        shard = int(np.searchsorted(self._starts, index, side="right")) - 1
        ids, offsets = self._files[shard]
        sides = len(self.header.sides)
        first = sides * (index - int(self._starts[shard]))
        ends = offsets[first : first + sides + 1].tolist()
        return tuple(ids[start:end] for start, end in pairwise(ends))

    def lengths(self, start: int = 0, stop: int | None = None) -> tuple[NDArray[np.int64], ...]:
        """Return the lengths of each side, eos included, of rows `start` to `stop`; loads no ids."""
        sides = len(self.header.sides)
        stop = len(self) if stop is None else min(stop, len(self))
        first, last = np.searchsorted(self._starts, (start, stop), side="right").tolist()
        parts = [np.empty((0, sides), np.int64)]
        for shard in range(first - 1, min(last, len(self._files))):
            low = max(start - int(self._starts[shard]), 0)
            high = min(stop - int(self._starts[shard]), self.header.shards[shard].rows)
            if low < high:
                offsets = self._files[shard][1][sides * low : sides * high + 1]
                parts.append(np.diff(offsets).reshape(-1, sides))
        return tuple(np.concatenate(parts).T)

    @cached_property
    def _files(self) -> list[tuple[Ids, NDArray[np.int64]]]:
        dtype = self.header.dtype
        return [
            (
                np.memmap(shard_path(self.folder, i, "ids"), dtype, "r").view(np.ndarray),
                np.memmap(shard_path(self.folder, i, "offsets"), "<i8", "r").view(np.ndarray),
            )
            for i in range(len(self.header.shards))
        ]


def read_header(folder: str | Path) -> Header:
    """Read the header of a folder of shards; raises DataError when it is missing, foreign or of another version."""
    path = Path(folder) / HEADER_FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
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
    shards = tuple(Shard(**shard) for shard in data["shards"])
    sides = tuple(Side(**side) for side in data["sides"])
    return Header(**{**data, "sides": sides, "shards": shards})


def _check_fingerprints(folder: Path, header: Header, tokenizers: Tokenizers) -> None:
    given = (("source", tokenizers.source), ("target", tokenizers.target))
    for side, (name, tokenizer) in zip(header.sides, given, strict=False):  # a text has one side
        stored, other = side.fingerprint, tokenizer.fingerprint
        if stored != other:
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
