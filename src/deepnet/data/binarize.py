"""Rows of sentences as ids on disk: shards that are read in place and never loaded.

A row has one sentence per side: two where sentences have translations, one in a text. A folder holds `header.json` and,
per shard, two files. In `00000.ids` the sentences follow one another (of pairs: source of row 0, target of row 0,
source of row 1, ...), each ending in eos, as uint16 or uint32 little-endian. In `00000.offsets` are sides x rows + 1
int64 little-endian: sentence k of the shard is ids[offsets[k]:offsets[k + 1]]. `SHA256SUMS` has the checksum of each
file; folders of earlier versions have none.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from deepnet.data.encoding import EncodedRows, IdType, encode_rows, id_type
from deepnet.data.text import BLOCK_ROWS, Row
from deepnet.data.tokenizer import Tokenizers
from deepnet.record import atomic_folder, write_json
from deepnet.seal import seal_folder

Count = Annotated[int, Field(ge=0)]

FORMAT = "deepnet-rows"
FORMAT_VERSION = 2
HEADER_FILE = "header.json"
SHARD_ROWS = 10_000_000
"""Most rows of a shard."""


@dataclass(frozen=True)
class Shard:
    """Sizes of one shard: its rows, and its ids over all sides."""

    rows: Count
    ids: Count


@dataclass(frozen=True)
class Side:
    """One sentence of every row: its language, tokenizer and number of tokens, eos included."""

    language: str
    vocab_size: Annotated[int, Field(ge=3, le=1 << 32)]
    fingerprint: str
    tokens: Count

    @property
    def pad(self) -> int:
        """The id of padding."""
        return self.vocab_size - 1


@dataclass(frozen=True)
class Header:
    """What is in a folder of shards; lengths and token counts include eos."""

    sides: Annotated[tuple[Side, ...], Field(min_length=1, max_length=2)]
    longest: Count
    too_long: Count
    shards: tuple[Shard, ...]
    format: str = FORMAT
    format_version: int = FORMAT_VERSION

    @property
    def rows(self) -> int:
        """Number of rows in all shards."""
        return sum(shard.rows for shard in self.shards)

    @property
    def dtype(self) -> IdType:
        """The type of the ids: the smaller that holds every vocabulary."""
        return id_type(side.vocab_size for side in self.sides)


def shard_path(folder: Path, index: int, suffix: str) -> Path:
    """Return the path of a shard's "ids" or "offsets" file."""
    return folder / f"{index:05d}.{suffix}"


def binarize(
    rows: Iterable[Row],
    *,
    folder: str | Path,
    tokenizers: Tokenizers,
    languages: tuple[str, ...],
    max_length: int,
    shard_rows: int = SHARD_ROWS,
) -> Header:
    """Write the ids of `rows` into the new folder `folder`, which appears when it is complete; return its header.

    `languages` are of the sides, one or two. A row with a sentence of more than `max_length` ids, eos included, is left
    out and counted in `too_long`.
    """
    waiting = iter(rows)
    blocks = iter(lambda: list(islice(waiting, BLOCK_ROWS)), [])
    encoded = (
        encode_rows(
            [list(side) for side in zip(*block, strict=True)],
            tokenizers=tokenizers,
            max_length=max_length,
        )
        for block in blocks
    )
    return write_shards(
        encoded, folder=folder, tokenizers=tokenizers, languages=languages, shard_rows=shard_rows
    )


def write_shards(
    blocks: Iterable[EncodedRows],
    *,
    folder: str | Path,
    tokenizers: Tokenizers,
    languages: tuple[str, ...],
    shard_rows: int = SHARD_ROWS,
) -> Header:
    """Write rows that these tokenizers have made into the new folder `folder`, as `binarize` does."""
    both = (tokenizers.source, tokenizers.target)[: len(languages)]
    tokens = np.zeros(len(languages), dtype=np.int64)
    longest = too_long = 0
    shards: list[Shard] = []
    with atomic_folder(folder) as new:
        for block in blocks:
            tokens += block.lengths.sum(axis=0)
            longest = max(longest, int(block.lengths.max(initial=0)))
            too_long += block.too_long
            _append_rows(new, shards, block, shard_rows)
        sides = tuple(
            Side(language, tokenizer.vocab_size, tokenizer.fingerprint, number)
            for language, tokenizer, number in zip(languages, both, tokens.tolist(), strict=True)
        )
        header = Header(sides, longest, too_long, tuple(shards))
        write_json(new / HEADER_FILE, asdict(header))
        seal_folder(new)
    return header


def _append_rows(folder: Path, shards: list[Shard], rows: EncodedRows, limit: int) -> None:
    """Write rows behind those that are there, and begin a shard wherever the last one has `limit` rows."""
    while len(rows.lengths):
        if not shards or shards[-1].rows == limit:
            shards.append(Shard(rows=0, ids=0))
            shard_path(folder, len(shards) - 1, "offsets").write_bytes(np.zeros(1, "<i8").tobytes())
        last = shards[-1]
        now, rows = rows[: limit - last.rows], rows[limit - last.rows :]
        ends = last.ids + np.cumsum(now.lengths)
        for suffix, numbers in (("ids", now.ids), ("offsets", ends.astype("<i8"))):
            with open(shard_path(folder, len(shards) - 1, suffix), "ab") as file:
                file.write(numbers.tobytes())
        shards[-1] = Shard(last.rows + len(now.lengths), int(ends[-1]))
