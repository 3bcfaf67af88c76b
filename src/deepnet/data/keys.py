"""Numbers that stand for rows and sentences, so that equal ones are found without holding the text."""

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
"""One key per element, or per row of several numbers."""
KEY_TYPE = np.dtype("<u8")
"""What keys are made of, in files as in memory."""
ROW_NUMBERS = 2
"""How many numbers make the key of a row."""
_LINE_END, _SPACE = 0x0A, 0x20


def row_keys(sides: Sequence[Sequence[str]]) -> Keys:
    """Return 128 bits of each row as [rows, 2]: the same where all its sentences are, and hardly ever elsewhere."""
    size = KEY_TYPE.itemsize * ROW_NUMBERS
    rows = map("\n".join, zip(*sides, strict=True))
    return _digests(rows, size).reshape(-1, ROW_NUMBERS)


def sentence_keys(sentences: Sequence[str]) -> Keys:
    """Return 64 bits of each sentence: the same where `normalise` gives the same."""
    return _digests(normalise(sentences), KEY_TYPE.itemsize)


def normalise(sentences: Sequence[str]) -> list[str]:
    """Return the words of each sentence without case, punctuation and Unicode variants, to compare sentences by.

    A sentence without any word stays as it is, without white space around it. No sentence may have a line feed.
    """
    if not sentences:
        return []
    text = "\n".join(map(_without_variants, sentences)).casefold()
    words = _words(text).split("\n")
    return [found or sentence.strip() for found, sentence in zip(words, sentences, strict=True)]


def _without_variants(sentence: str) -> str:
    return sentence if sentence.isascii() else unicodedata.normalize("NFKC", sentence)


def _words(text: str) -> str:
    """Return the words of each line, one space between them."""
    points = np.frombuffer(text.encode("utf-32-le"), "<u4")
    places = np.flatnonzero(_is_alphanumeric()[points] | (points == _LINE_END))
    kept = points[places]
    within = (kept[1:] != _LINE_END) & (kept[:-1] != _LINE_END)
    gaps = np.flatnonzero((np.diff(places) > 1) & within) + 1
    return np.insert(kept, gaps, _SPACE).tobytes().decode("utf-32-le")


@cache
def _is_alphanumeric() -> NDArray[np.bool_]:
    """Return for every code point whether it belongs to a word."""
    points = np.arange(0x110000, dtype="<u4").view("<U1")
    return np.asarray(np.char.isalnum(points))


def _digests(texts: Iterable[str], size: int) -> Keys:
    digests = (hashlib.blake2b(text.encode(), digest_size=size).digest() for text in texts)
    return np.frombuffer(b"".join(digests), KEY_TYPE)
