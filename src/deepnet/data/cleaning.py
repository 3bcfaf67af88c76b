"""Which rows, pairs or single sentences, are fit to learn from, and how many were left out for which reason.

Rows that are unfit by themselves, or because a sentence of theirs is held out, are found block by block, in any
process; which rows repeat an earlier one is known when all are there (`sorting.py`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, compress
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from deepnet.config import Section
from deepnet.data.keys import KEY_TYPE, Keys, row_keys, sentence_keys
from deepnet.data.sorting import KeyIndex, is_known, read_records
from deepnet.data.text import Block, Row, decode_block, joined_lines, line_blocks
from deepnet.errors import DataError

_RATIO_FROM_BYTES = 20
_MOST_BYTES = 4
"""Of a character in UTF-8."""
_TAG_START = "<2"
_NO_KEYS = np.empty((0, 0), KEY_TYPE)


class CleaningConfig(Section):
    """What makes a training pair, or a line of one text, unfit; pairs without a translation are always left out."""

    min_words: Annotated[int, Field(ge=1)] = 1
    """Fewest words (parts between white space) of either side."""
    max_words: Annotated[int, Field(ge=1)] = 250
    """Most words of either side."""
    max_characters: Annotated[int, Field(ge=1)] = 3000
    """Most characters of either side; also bounds what is not written in words."""
    max_ratio: Annotated[float, Field(ge=1)] = 6.0
    """Most UTF-8 bytes of the longer side per byte of the shorter; pairs of sides under 20 bytes are not asked.
    Of one text there is no ratio."""
    drop_duplicates: bool = True
    """Keep only the first of equal pairs or lines."""
    drop_held_out: bool = True
    """Leave out pairs or lines of which a sentence, case and punctuation apart, stands in valid or test."""

    @model_validator(mode="after")
    def _check_words(self) -> Self:
        if self.min_words > self.max_words:
            raise ValueError(
                f"'min_words' is {self.min_words}, more than 'max_words' = {self.max_words}"
            )
        return self


@dataclass
class CleaningCounts:
    """How many rows were read and kept, and how many left out for each reason (the first that applied)."""

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, other: "CleaningCounts") -> None:
        """Count what another has counted, too."""
        self.read += other.read
        self.kept += other.kept
        self.dropped.update(other.dropped)

    def to_dict(self) -> dict[str, object]:
        """Return the counts for a JSON file."""
        return {"read": self.read, "kept": self.kept, "dropped": dict(self.dropped)}


@dataclass(frozen=True)
class Cleaning:
    """What is done with a block of the training part, whichever process does it."""

    config: CleaningConfig
    paths: tuple[Path, ...]
    """The files that the blocks are of, one per side."""
    held_out: tuple[Path, ...] = ()
    """Of each side the index of the sentences in valid and test; none where they may stay."""
    splits: bool = False
    """Whether the keys of sentences are wanted, to split valid and test off."""
    tags: tuple[str, ...] = ()
    """What no sentence may have, as it means a language."""

    def __call__(self, block: Block) -> "CleanedBlock":
        """Return the rows that are fit; raises DataError where a line is not UTF-8 or has a tag."""
        read = tuple(list(map(str.strip, side)) for side in decode_block(block, self.paths))
        for lines, path in zip(read, self.paths, strict=True):
            refuse_tags(lines, self.tags, path=path, first=block.first)
        counts = CleaningCounts(read=block.rows)
        fit = is_fit(read, self.config, counts=counts)
        sides = _chosen(read, fit)
        sentences = _sentence_keys(sides) if self.held_out or self.splits else _NO_KEYS
        if self.held_out:
            free = ~_has_any(sentences, self.held_out)
            if number := int((~free).sum()):
                counts.dropped["in valid or test"] += number
            sides, sentences = _chosen(sides, free), sentences[free]
        counts.kept = len(sides[0])
        return CleanedBlock(
            counts=counts,
            sides=tuple(map(joined_lines, sides)),
            rows=row_keys(sides) if self.config.drop_duplicates else _NO_KEYS,
            sentences=sentences if self.splits else _NO_KEYS,
        )


@dataclass(frozen=True)
class CleanedBlock:
    """The fit rows of a block."""

    counts: CleaningCounts
    sides: tuple[bytes, ...]
    """The sentences of each side, one per line."""
    rows: Keys
    """[rows, 2], the same where rows are; empty where duplicates may stay."""
    sentences: Keys
    """[rows, sides], the same where sentences are, case and punctuation apart; empty where nothing is split off."""


def is_fit(
    sides: Sequence[Sequence[str]], config: CleaningConfig, *, counts: CleaningCounts
) -> NDArray[np.bool_]:
    """Return which rows, given side by side without white space around sentences, are fit by themselves.

    Those that are not are counted.
    """
    fit = _is_plainly_fit(sides, config)
    for index in np.flatnonzero(~fit).tolist():
        reason = _unfit(tuple(side[index] for side in sides), config)
        if reason:
            counts.dropped[reason] += 1
        fit[index] = not reason
    return fit


def index_sentences(files: Sequence[Path], folder: Path) -> Path:
    """Write an index of the sentences of some files into the new folder `folder`, and return it."""
    keys = folder.with_suffix(".keys")
    with keys.open("wb") as file:
        for lines in chain.from_iterable(map(line_blocks, files)):
            file.write(sentence_keys(lines).tobytes())
    total = keys.stat().st_size // KEY_TYPE.itemsize
    KeyIndex.write(partial(read_records, keys, width=1), folder, total=total, most=1)
    return folder


def drop_empty(rows: Iterable[Row], *, counts: CleaningCounts) -> Iterator[Row]:
    """Yield the rows of a valid or test part: all but those with an empty side, which are counted."""
    for row in rows:
        stripped = tuple(sentence.strip() for sentence in row)
        counts.read += 1
        if all(stripped):
            counts.kept += 1
            yield stripped
        else:
            counts.dropped["empty"] += 1


def without_tags(rows: Iterable[Row], paths: Sequence[Path], tags: Sequence[str]) -> Iterator[Row]:
    """Yield the rows of some files; raises DataError where a sentence has one of the tags."""
    for number, row in enumerate(rows):
        for sentence, path in zip(row, paths, strict=True):
            refuse_tags([sentence], tags, path=path, first=number)
        yield row


def refuse_tags(lines: Sequence[str], tags: Sequence[str], *, path: Path, first: int) -> None:
    """Raise DataError, with the line, where one of the tags occurs; `first` lines of the file come before these."""
    if not tags or not any(_TAG_START in line for line in lines):
        return
    for number, line in enumerate(lines, first + 1):
        if tag := next((tag for tag in tags if tag in line), ""):
            raise DataError(
                f"{path}, line {number:,}: '{tag}' is the tag that asks for a translation into that language, and no "
                "text may have it; take it out"
            )


def _is_plainly_fit(sides: Sequence[Sequence[str]], config: CleaningConfig) -> NDArray[np.bool_]:
    """Return which rows are fit by the number of their characters alone: most, and counting those is quick."""
    lengths = np.array([list(map(len, side)) for side in sides])
    longest, shortest = lengths.max(axis=0), lengths.min(axis=0)
    # words are parted by at least one character each
    words = (longest + 1) // 2 <= config.max_words if config.min_words == 1 else False
    bytes_at_most = _MOST_BYTES * longest
    ratio = (bytes_at_most < _RATIO_FROM_BYTES) | (bytes_at_most <= config.max_ratio * shortest)
    return np.asarray((shortest > 0) & (longest <= config.max_characters) & words & ratio)


def _unfit(row: Row, config: CleaningConfig) -> str:
    """Return why the row is unfit by itself, or ""; a single sentence is as long as itself, so has no ratio."""
    if not all(row):
        return "empty"
    if max(map(len, row)) > config.max_characters:
        return "too long"
    words = [len(sentence.split()) for sentence in row]
    if max(words) > config.max_words:
        return "too long"
    if min(words) < config.min_words:
        return "too short"
    # Bytes, because a script that needs few characters takes more bytes for each.
    sizes = [len(sentence.encode()) for sentence in row]
    if max(sizes) >= _RATIO_FROM_BYTES and max(sizes) > config.max_ratio * min(sizes):
        return "length ratio"
    return ""


def _chosen(sides: tuple[list[str], ...], mask: NDArray[np.bool_]) -> tuple[list[str], ...]:
    return sides if mask.all() else tuple(list(compress(side, mask.tolist())) for side in sides)


def _sentence_keys(sides: Sequence[list[str]]) -> Keys:
    return np.stack([sentence_keys(side) for side in sides], axis=1)


def _has_any(sentences: Keys, held_out: Sequence[Path]) -> NDArray[np.bool_]:
    """Return which rows have a sentence that the index of its side has."""
    sides = zip(sentences.T, held_out, strict=True)
    return np.asarray(np.any([is_known(keys, folder) for keys, folder in sides], axis=0))
