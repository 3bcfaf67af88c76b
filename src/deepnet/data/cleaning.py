"""Which sentence pairs are fit to learn from, and how many were left out for which reason."""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Self

from pydantic import Field, model_validator

from deepnet.config import Section

_NOT_WORD = re.compile(r"[\W_]+")
_RATIO_FROM_BYTES = 20


class CleaningConfig(Section):
    """What makes a training pair unfit; pairs without a translation are always left out."""

    min_words: Annotated[int, Field(ge=1)] = 1
    """Fewest words (parts between white space) of either side."""
    max_words: Annotated[int, Field(ge=1)] = 250
    """Most words of either side."""
    max_characters: Annotated[int, Field(ge=1)] = 3000
    """Most characters of either side; also bounds what is not written in words."""
    max_ratio: Annotated[float, Field(ge=1)] = 6.0
    """Most UTF-8 bytes of the longer side per byte of the shorter; pairs of sides under 20 bytes are not asked."""
    drop_duplicates: bool = True
    """Keep only the first of equal pairs (needs about 100 bytes of memory for each pair)."""
    drop_held_out: bool = True
    """Leave out pairs whose source or target sentence, case and punctuation apart, stands in valid or test."""

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

    sources: frozenset[str] = frozenset()
    targets: frozenset[str] = frozenset()

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> "HeldOut":
        """Collect both sides of `pairs`."""
        both = [(normalise(source), normalise(target)) for source, target in pairs]
        return cls(frozenset(s for s, _ in both), frozenset(t for _, t in both))

    def has(self, source: str, target: str) -> bool:
        """Return whether either sentence is held out."""
        return normalise(source) in self.sources or normalise(target) in self.targets


@dataclass
class CleaningCounts:
    """How many pairs were read and kept, and how many left out for each reason (the first that applied)."""

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
    pairs: Iterable[tuple[str, str]],
    *,
    config: CleaningConfig,
    held_out: HeldOut,
    counts: CleaningCounts,
) -> Iterator[tuple[str, str]]:
    """Yield the pairs that are fit, without white space around them, and count all in `counts`."""
    seen: set[bytes] = set()
    for source, target in pairs:
        source, target = source.strip(), target.strip()
        counts.read += 1
        reason = _unfit(source, target, config) or _repeated(source, target, config, held_out, seen)
        if reason:
            counts.dropped[reason] += 1
            continue
        counts.kept += 1
        yield source, target


def drop_untranslated(
    pairs: Iterable[tuple[str, str]], *, counts: CleaningCounts
) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a valid or test part: all but those with an empty side, which are counted."""
    for source, target in pairs:
        counts.read += 1
        if source.strip() and target.strip():
            counts.kept += 1
            yield source.strip(), target.strip()
        else:
            counts.dropped["empty"] += 1


def _unfit(source: str, target: str, config: CleaningConfig) -> str:
    """Return why the pair is unfit by itself, or ""."""
    if not source or not target:
        return "empty"
    if max(len(source), len(target)) > config.max_characters:
        return "too long"
    fewer, more = sorted((len(source.split()), len(target.split())))
    if more > config.max_words:
        return "too long"
    if fewer < config.min_words:
        return "too short"
    # Bytes, because a script that needs few characters takes more bytes for each.
    shorter, longer = sorted((len(source.encode()), len(target.encode())))
    if longer >= _RATIO_FROM_BYTES and longer > config.max_ratio * shorter:
        return "length ratio"
    return ""


def _repeated(
    source: str, target: str, config: CleaningConfig, held_out: HeldOut, seen: set[bytes]
) -> str:
    """Return why the pair is unfit because of others, or ""; remembers it as seen."""
    if config.drop_held_out and held_out.has(source, target):
        return "in valid or test"
    if config.drop_duplicates:
        key = hashlib.blake2b(f"{source}\n{target}".encode(), digest_size=12).digest()
        if key in seen:
            return "duplicate"
        seen.add(key)
    return ""
