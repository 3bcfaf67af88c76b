"""Sentence pairs as ids on disk: shards that are read in place and never loaded.

A folder holds `header.json` and, per shard, two files. In `00000.ids` the sentences follow one another (source of
pair 0, target of pair 0, source of pair 1, ...), each ending in eos, as uint16 or uint32 little-endian. In
`00000.offsets` are 2 x pairs + 1 int64 little-endian: sentence k of the shard is ids[offsets[k]:offsets[k + 1]].
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np

from deepnet.data.tokenizer import EOS, Tokenizers
from deepnet.record import atomic_folder, write_json

IdType = np.dtype[np.uint16] | np.dtype[np.uint32]

FORMAT = "deepnet-pairs"
FORMAT_VERSION = 1
HEADER_FILE = "header.json"
_CHUNK_PAIRS = 20_000


@dataclass(frozen=True)
class Shard:
    """Sizes of one shard: its pairs, and its ids over both sides."""

    pairs: int
    ids: int


@dataclass(frozen=True)
class Header:
    """What is in a folder of shards; lengths and token counts include eos."""

    source_language: str
    target_language: str
    source_vocab_size: int
    target_vocab_size: int
    source_fingerprint: str
    target_fingerprint: str
    source_tokens: int
    target_tokens: int
    longest: int
    too_long: int
    shards: tuple[Shard, ...]
    format: str = FORMAT
    format_version: int = FORMAT_VERSION

    @property
    def pairs(self) -> int:
        """Number of pairs in all shards."""
        return sum(shard.pairs for shard in self.shards)

    @property
    def dtype(self) -> IdType:
        """The type of the ids: the smaller that holds both vocabularies."""
        largest = max(self.source_vocab_size, self.target_vocab_size) - 1
        return np.dtype("<u2") if largest < 1 << 16 else np.dtype("<u4")


@dataclass
class _Totals:
    source_tokens: int = 0
    target_tokens: int = 0
    longest: int = 0
    too_long: int = 0


def shard_path(folder: Path, index: int, suffix: str) -> Path:
    """Return the path of a shard's "ids" or "offsets" file."""
    return folder / f"{index:05d}.{suffix}"


def binarize(
    pairs: Iterable[tuple[str, str]],
    *,
    folder: str | Path,
    tokenizers: Tokenizers,
    languages: tuple[str, str],
    max_length: int,
    shard_pairs: int = 10_000_000,
) -> Header:
    """Write the ids of `pairs` into the new folder `folder`, which appears when it is complete; return its header.

    A pair with a sentence of more than `max_length` ids, eos included, is left out and counted in `too_long`.
    """
    with atomic_folder(folder) as new:
        header = _write_shards(iter(pairs), new, tokenizers, languages, max_length, 2 * shard_pairs)
        write_json(new / HEADER_FILE, asdict(header))
    return header


def _write_shards(
    pairs: Iterator[tuple[str, str]],
    folder: Path,
    tokenizers: Tokenizers,
    languages: tuple[str, str],
    max_length: int,
    limit: int,
) -> Header:
    """Write shards of up to `limit` sentences."""
    totals = _Totals()
    shards: list[Shard] = []
    chunks = _encoded_chunks(pairs, tokenizers, max_length, totals)
    dtype = _header(tokenizers, languages, totals, ()).dtype
    held: list[list[int]] = next(chunks, [])
    while held:
        held, shard = _write_shard(folder, len(shards), held, chunks, limit, dtype)
        shards.append(shard)
    return _header(tokenizers, languages, totals, tuple(shards))


def _encoded_chunks(
    pairs: Iterator[tuple[str, str]], tokenizers: Tokenizers, max_length: int, totals: _Totals
) -> Iterator[list[list[int]]]:
    """Yield lists of sentences as ids (source, target, source, ...) and count what is in them."""
    while chunk := list(islice(pairs, _CHUNK_PAIRS)):
        sources = tokenizers.source.encode([source for source, _ in chunk])
        targets = tokenizers.target.encode([target for _, target in chunk])
        sentences = []
        for source, target in zip(sources, targets, strict=True):
            longest = max(len(source), len(target)) + 1
            if longest > max_length:
                totals.too_long += 1
                continue
            totals.longest = max(totals.longest, longest)
            totals.source_tokens += len(source) + 1
            totals.target_tokens += len(target) + 1
            sentences += [[*source, EOS], [*target, EOS]]
        if sentences:
            yield sentences


def _write_shard(
    folder: Path,
    index: int,
    held: list[list[int]],
    chunks: Iterator[list[list[int]]],
    limit: int,
    dtype: IdType,
) -> tuple[list[list[int]], Shard]:
    """Write `held` and further chunks up to `limit` sentences; return what is left over, and the shard."""
    end, count = 0, 0
    with (
        open(shard_path(folder, index, "ids"), "wb") as ids_file,
        open(shard_path(folder, index, "offsets"), "wb") as offsets_file,
    ):
        offsets_file.write(np.zeros(1, "<i8").tobytes())
        while held and count < limit:
            now, held = held[: limit - count], held[limit - count :]
            offsets = end + np.cumsum([len(sentence) for sentence in now])
            ids_file.write(np.fromiter(chain.from_iterable(now), dtype).tobytes())
            offsets_file.write(offsets.astype("<i8").tobytes())
            end, count = int(offsets[-1]), count + len(now)
            held = held or next(chunks, [])
    return held, Shard(pairs=count // 2, ids=end)


def _header(
    tokenizers: Tokenizers,
    languages: tuple[str, str],
    totals: _Totals,
    shards: tuple[Shard, ...],
) -> Header:
    return Header(
        source_language=languages[0],
        target_language=languages[1],
        source_vocab_size=tokenizers.source.vocab_size,
        target_vocab_size=tokenizers.target.vocab_size,
        source_fingerprint=tokenizers.source.fingerprint,
        target_fingerprint=tokenizers.target.fingerprint,
        shards=shards,
        **asdict(totals),
    )
