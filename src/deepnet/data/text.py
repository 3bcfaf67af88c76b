"""Plain or gzip text, read line by line, with errors that name the file and the line.

A line ends at a line feed; a carriage return before it and a byte order mark at the start of the file are not text.
"""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from io import BufferedReader
from itertools import zip_longest
from pathlib import Path
from typing import IO
from zipfile import ZipExtFile

from deepnet.errors import DataError

_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = "\ufeff"


def read_lines(path: str | Path) -> Iterator[str]:
    """Yield the lines of a plain or gzip UTF-8 file without their line ends.

    Raises DataError for a file that is missing, is a folder, is damaged gzip, or is not UTF-8 (with the line).
    """
    try:
        with open(path, "rb") as file:
            yield from decode_lines(file, name=str(path))
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}; give a plain or gzip text file"
        ) from error


def decode_lines(stream: BufferedReader | ZipExtFile, *, name: str) -> Iterator[str]:
    """Yield the lines of an open plain or gzip stream; `name` stands for it in errors, as in `read_lines`."""
    is_gzip = stream.peek(2)[:2] == _GZIP_MAGIC
    number = 0
    try:
        for number, raw in enumerate(gzip.GzipFile(fileobj=stream) if is_gzip else stream, 1):
            yield _decode(raw, name, number)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{name} cannot be read after line {number:,}: {error}; fetch or write the file again"
        ) from error


def read_pairs(source: str | Path, target: str | Path) -> Iterator[tuple[str, str]]:
    """Yield line N of `source` with line N of `target`.

    Raises DataError when a file is empty or when one has more lines than the other, with both counts.
    """
    sources, targets = read_lines(source), read_lines(target)
    number = 0
    for number, (left, right) in enumerate(zip_longest(sources, targets), 1):
        if left is None or right is None:
            longer = number + sum(1 for _ in (targets if left is None else sources))
            counts = (number - 1, longer) if left is None else (longer, number - 1)
            raise DataError(
                f"{source} has {counts[0]:,} lines and {target} has {counts[1]:,}; "
                "line N of one must be the translation of line N of the other"
            )
        yield left, right
    if number == 0:
        raise DataError(f"{source} and {target} are empty; expected one sentence per line")


def write_pairs(pairs: Iterable[tuple[str, str]], *, source: str | Path, target: str | Path) -> int:
    """Write both sides of `pairs` as plain UTF-8 text, one sentence per line, and return their number."""
    number = 0
    with _create(source) as source_file, _create(target) as target_file:
        for left, right in pairs:
            source_file.write(left + "\n")
            target_file.write(right + "\n")
            number += 1
    return number


def _create(path: str | Path) -> IO[str]:
    return open(path, "w", encoding="utf-8", newline="\n")


def _decode(raw: bytes, name: str, number: int) -> str:
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}, line {number:,}: byte {error.start + 1} of the line (0x{raw[error.start]:02x}) "
            "is not UTF-8; convert the file, for instance with iconv -t UTF-8"
        ) from error
    if number == 1:
        line = line.removeprefix(_BYTE_ORDER_MARK)
    return line.removesuffix("\n").removesuffix("\r")
