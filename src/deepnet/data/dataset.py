"""Binarised pairs, read in place: opening costs nothing, whatever the size."""

import json
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepnet.data.binarize import FORMAT, FORMAT_VERSION, HEADER_FILE, Header, Shard, shard_path
from deepnet.data.tokenizer import Tokenizers
from deepnet.errors import DataError

Ids = NDArray[np.uint16] | NDArray[np.uint32]


class PairDataset:
    """Pairs of sentences as ids; each sentence ends in eos."""

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
        self._starts = np.cumsum([0, *(shard.pairs for shard in self.header.shards)])

    def __len__(self) -> int:
        """Return the number of pairs."""
        return self.header.pairs

    def __getitem__(self, index: int) -> tuple[Ids, Ids]:
        """Return source and target ids of pair `index` as read-only views on the file."""
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        shard = int(np.searchsorted(self._starts, index, side="right")) - 1
        ids, offsets = self._files[shard]
        first = 2 * (index - int(self._starts[shard]))
        start, middle, end = offsets[first : first + 3].tolist()
        return ids[start:middle], ids[middle:end]

    @property
    def source_pad(self) -> int:
        """The source vocabulary's padding id."""
        return self.header.source_vocab_size - 1

    @property
    def target_pad(self) -> int:
        """The target vocabulary's padding id."""
        return self.header.target_vocab_size - 1

    def lengths(
        self, start: int = 0, stop: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the source and target lengths, eos included, of pairs `start` to `stop`; loads no ids."""
        stop = len(self) if stop is None else min(stop, len(self))
        first, last = np.searchsorted(self._starts, (start, stop), side="right").tolist()
        parts = [np.empty((0, 2), np.int64)]
        for shard in range(first - 1, min(last, len(self._files))):
            low = max(start - int(self._starts[shard]), 0)
            high = min(stop - int(self._starts[shard]), self.header.shards[shard].pairs)
            if low < high:
                parts.append(np.diff(self._files[shard][1][2 * low : 2 * high + 1]).reshape(-1, 2))
        both = np.concatenate(parts)
        return both[:, 0], both[:, 1]

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
            f"{folder} holds no prepared pairs (no {HEADER_FILE}); prepare the data again"
        ) from error
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}; prepare the data again") from error
    return _parse_header(path, data)


def _parse_header(path: Path, data: Any) -> Header:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise DataError(f"{path} does not describe prepared pairs; prepare the data again")
    if data.get("format_version") != FORMAT_VERSION:
        raise DataError(
            f"{path} has format version {data.get('format_version')}, this deepnet reads "
            f"{FORMAT_VERSION}; prepare the data again"
        )
    if set(data) != {field.name for field in fields(Header)}:
        raise DataError(f"{path} lacks keys or has foreign ones; prepare the data again")
    shards = tuple(Shard(**shard) for shard in data["shards"])
    return Header(**{**data, "shards": shards})


def _check_fingerprints(folder: Path, header: Header, tokenizers: Tokenizers) -> None:
    sides = (
        ("source", header.source_fingerprint, tokenizers.source.fingerprint),
        ("target", header.target_fingerprint, tokenizers.target.fingerprint),
    )
    for side, stored, given in sides:
        if stored != given:
            raise DataError(
                f"{folder} was made with another {side} tokenizer ({stored[:12]}, not {given[:12]}); "
                "prepare the data again with this one"
            )


def _check_sizes(folder: Path, header: Header) -> None:
    if not header.shards:
        raise DataError(f"{folder} holds no pairs; give more text or looser cleaning")
    for index, shard in enumerate(header.shards):
        expected = {"ids": shard.ids * header.dtype.itemsize, "offsets": 8 * (2 * shard.pairs + 1)}
        for suffix, size in expected.items():
            path = shard_path(folder, index, suffix)
            actual = path.stat().st_size if path.exists() else 0
            if actual != size:
                raise DataError(
                    f"{path} has {actual:,} bytes instead of {size:,}: it is damaged; "
                    "delete the folder and prepare the data again"
                )
