"""Rows of sentences as ids on disk: shards that are read in place and never loaded.

A row has one sentence per side: two where sentences have translations, one in a text. A folder holds `header.json` and,
per shard, two files. In `00000.ids` the sentences follow one another (of pairs: source of row 0, target of row 0,
source of row 1, ...), each ending in eos, as uint16 or uint32 little-endian. In `00000.offsets` are sides x rows + 1
int64 little-endian: sentence k of the shard is ids[offsets[k]:offsets[k + 1]]. `SHA256SUMS` has the checksum of each
file; folders of earlier versions have none.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from deepnet.data.text import Row
from deepnet.data.tokenizer import EOS, Tokenizer, Tokenizers
from deepnet.record import atomic_folder, write_json
from deepnet.seal import seal_folder

Count = Annotated[int, Field(ge=0)]
IdType = np.dtype[np.uint16] | np.dtype[np.uint32]

FORMAT = "deepnet-rows"
FORMAT_VERSION = 2
HEADER_FILE = "header.json"
_CHUNK_ROWS = 20_000


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
        return _id_type(side.vocab_size for side in self.sides)


@dataclass
class _Totals:
    tokens: list[int]
    """Per side."""
    longest: int = 0
    too_long: int = 0


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
    shard_rows: int = 10_000_000,
) -> Header:
    """Write the ids of `rows` into the new folder `folder`, which appears when it is complete; return its header.

    `languages` are of the sides, one or two. A row with a sentence of more than `max_length` ids, eos included, is left
    out and counted in `too_long`.
    """
    sides = (tokenizers.source, tokenizers.target)[: len(languages)]
    with atomic_folder(folder) as new:
        header = _write_shards(iter(rows), new, sides, languages, max_length, shard_rows)
        write_json(new / HEADER_FILE, asdict(header))
        seal_folder(new)
    return header


def _write_shards(
    rows: Iterator[Row],
    folder: Path,
    tokenizers: Sequence[Tokenizer],
    languages: tuple[str, ...],
    max_length: int,
    shard_rows: int,
) -> Header:
    totals = _Totals([0] * len(tokenizers))
    shards: list[Shard] = []
    chunks = _encoded_chunks(rows, tokenizers, max_length, totals)
    dtype = _id_type(tokenizer.vocab_size for tokenizer in tokenizers)
    held: list[list[list[int]]] = next(chunks, [])
    while held:
        held, shard = _write_shard(folder, len(shards), held, chunks, shard_rows, dtype)
        shards.append(shard)
    sides = tuple(
        Side(language, tokenizer.vocab_size, tokenizer.fingerprint, tokens)
        for language, tokenizer, tokens in zip(languages, tokenizers, totals.tokens, strict=True)
    )
    return Header(sides, totals.longest, totals.too_long, tuple(shards))


def _encoded_chunks(
    rows: Iterator[Row], tokenizers: Sequence[Tokenizer], max_length: int, totals: _Totals
) -> Iterator[list[list[list[int]]]]:
    """Yield lists of rows as ids, each sentence with eos, and count what is in them."""
    while chunk := list(islice(rows, _CHUNK_ROWS)):
        sides = [
            tokenizer.encode(list(sentences))
            for tokenizer, sentences in zip(tokenizers, zip(*chunk, strict=True), strict=True)
        ]
        kept = []
        for row in zip(*sides, strict=True):
            lengths = [len(ids) + 1 for ids in row]
            if max(lengths) > max_length:
                totals.too_long += 1
                continue
            totals.longest = max(totals.longest, *lengths)
            totals.tokens = [sum(both) for both in zip(totals.tokens, lengths, strict=True)]
            kept.append([[*ids, EOS] for ids in row])
        if kept:
            yield kept


def _write_shard(
    folder: Path,
    index: int,
    held: list[list[list[int]]],
    chunks: Iterator[list[list[list[int]]]],
    limit: int,
    dtype: IdType,
) -> tuple[list[list[list[int]]], Shard]:
    """Write `held` and further chunks up to `limit` rows; return what is left over, and the shard."""
    end, count = 0, 0
    with (
        open(shard_path(folder, index, "ids"), "wb") as ids_file,
        open(shard_path(folder, index, "offsets"), "wb") as offsets_file,
    ):
        offsets_file.write(np.zeros(1, "<i8").tobytes())
        while held and count < limit:
            now, held = held[: limit - count], held[limit - count :]
            sentences = list(chain.from_iterable(now))
            offsets = end + np.cumsum([len(sentence) for sentence in sentences])
            ids_file.write(np.fromiter(chain.from_iterable(sentences), dtype).tobytes())
            offsets_file.write(offsets.astype("<i8").tobytes())
            end, count = int(offsets[-1]), count + len(now)
            held = held or next(chunks, [])
    return held, Shard(rows=count, ids=end)


def _id_type(vocab_sizes: Iterable[int]) -> IdType:
    return np.dtype("<u2") if max(vocab_sizes) <= 1 << 16 else np.dtype("<u4")
