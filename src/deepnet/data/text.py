"""Plain or gzip text, read line by line, with errors that name the file and the line.

A row is line N of every file that belongs together: a sentence and its translation, or of one text a sentence alone.
A line ends at a line feed; a carriage return before it and a byte order mark at the start of the file are not text.
"""

import gzip
import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from io import BufferedReader
from itertools import zip_longest
from pathlib import Path
from typing import IO
from zipfile import ZipExtFile

from deepnet.errors import DataError

_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = "\ufeff"

Row = tuple[str, ...]
"""The sentences of one line number, one per side."""


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
    """Yield line N of `source` with line N of `target`; raises DataError as `read_rows` does."""
    return ((left, right) for left, right in read_rows((source, target)))


def read_rows(paths: Sequence[str | Path]) -> Iterator[Row]:
    """Yield the rows of some files.

    Raises DataError when a file is empty or when one has more lines than another, with the counts.
    """
    readers = [read_lines(path) for path in paths]
    number = 0
    for number, row in enumerate(zip_longest(*readers), 1):
        if None in row:
            counts = [
                number - 1 if line is None else number + sum(1 for _ in reader)
                for line, reader in zip(row, readers, strict=True)
            ]
            raise DataError(_unequal(paths, counts))
        yield row
    if number == 0:
        what = " and ".join(map(str, paths))
        raise DataError(
            f"{what} {'is' if len(paths) == 1 else 'are'} empty; expected one sentence per line"
        )


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file's bytes; raises DataError when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; check the path") from error


def write_rows(rows: Iterable[Row], paths: Sequence[str | Path]) -> int:
    """Write each side of `rows` as plain UTF-8 text, one sentence per line, and return their number."""
    number = 0
    with ExitStack() as stack:
        files = [stack.enter_context(_create(path)) for path in paths]
        for row in rows:
            for file, sentence in zip(files, row, strict=True):
                file.write(sentence + "\n")
            number += 1
    return number


def _unequal(paths: Sequence[str | Path], counts: Sequence[int]) -> str:
    first, *others = (f"{path} has {count:,}" for path, count in zip(paths, counts, strict=True))
    return (
        f"{first} lines and {' and '.join(others)}; "
        "line N of one must be the translation of line N of the other"
    )


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
