"""Which rows, pairs or single sentences, are fit to learn from, and how many were left out for which reason."""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Self

from pydantic import Field, model_validator

from deepnet.config import Section
from deepnet.data.text import Row

_NOT_WORD = re.compile(r"[\W_]+")
_RATIO_FROM_BYTES = 20


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
    """Keep only the first of equal pairs or lines (needs about 100 bytes of memory for each)."""
    drop_held_out: bool = True
    """Leave out pairs or lines of which a sentence, case and punctuation apart, stands in valid or test."""

    @model_validator(mode="after")
    def _check_words(self) -> Self:
        if self.min_words > self.max_words:
            raise ValueError(
                f"'min_words' is {self.min_words}, more than 'max_words' = {self.max_words}"
            )
        return self


@dataclass(frozen=True)
class HeldOut:
    """The sentences of valid and test, as `normalise` gives them."""

    sides: tuple[frozenset[str], ...] = ()

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "HeldOut":
        """Collect each side of `rows`."""
        normalised = (map(normalise, row) for row in rows)
        return cls(tuple(frozenset(side) for side in zip(*normalised, strict=True)))

    def has(self, row: Row) -> bool:
        """Return whether a sentence of a row is held out."""
        return any(normalise(s) in side for s, side in zip(row, self.sides, strict=False))


@dataclass
class CleaningCounts:
    """How many rows were read and kept, and how many left out for each reason (the first that applied)."""

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def to_dict(self) -> dict[str, object]:
        """Return the counts for a JSON file."""
        return {"read": self.read, "kept": self.kept, "dropped": dict(self.dropped)}


def normalise(sentence: str) -> str:
    """Return the words of a sentence without case, punctuation and Unicode variants, to compare sentences by.

    A sentence without any word stays as it is.
    """
    text = unicodedata.normalize("NFKC", sentence).casefold()
    return _NOT_WORD.sub(" ", text).strip() or sentence.strip()


def clean(
    rows: Iterable[Row],
    *,
    config: CleaningConfig,
    held_out: HeldOut,
    counts: CleaningCounts,
) -> Iterator[Row]:
    """Yield the rows that are fit, without white space around them, and count all in `counts`."""
    seen: set[bytes] = set()
    for row in map(_stripped, rows):
        counts.read += 1
        reason = _unfit(row, config) or _repeated(row, config, held_out, seen)
        if reason:
            counts.dropped[reason] += 1
            continue
        counts.kept += 1
        yield row


def drop_empty(rows: Iterable[Row], *, counts: CleaningCounts) -> Iterator[Row]:
    """Yield the rows of a valid or test part: all but those with an empty side, which are counted."""
    for row in map(_stripped, rows):
        counts.read += 1
        if all(row):
            counts.kept += 1
            yield row
        else:
            counts.dropped["empty"] += 1


def _stripped(row: Row) -> Row:
    return tuple(sentence.strip() for sentence in row)


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


def _repeated(row: Row, config: CleaningConfig, held_out: HeldOut, seen: set[bytes]) -> str:
    """Return why the row is unfit because of others, or ""; remembers it as seen."""
    if config.drop_held_out and held_out.has(row):
        return "in valid or test"
    if config.drop_duplicates:
        key = hashlib.blake2b("\n".join(row).encode(), digest_size=12).digest()
        if key in seen:
            return "duplicate"
        seen.add(key)
    return ""
