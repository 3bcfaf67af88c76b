"""Plain or gzip text, read line by line, with errors that name the file and the line.

A row is line N of every file that belongs together: a sentence and its translation, or of one text a sentence alone.
A line ends at a line feed; a carriage return before it and a byte order mark at the start of the file are not text.
"""

import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import IO
from zipfile import ZipExtFile

from deepnet.errors import DataError

_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = "\ufeff"
_UNZIPPED_BYTES = 1 << 20

Row = tuple[str, ...]
"""The sentences of one line number, one per side."""

BLOCK_ROWS = 5_000
"""Most rows of a block."""
BLOCK_BYTES = 1 << 20
"""Bytes of all sides together at which a block is full."""
_RUN_ROWS = 256


@dataclass(frozen=True)
class Block:
    """Consecutive rows as the files have them, not yet decoded."""

    first: int
    """The number of rows before it."""
    rows: int
    sides: tuple[bytes, ...]
    """The lines of each side."""


@dataclass(frozen=True)
class Span:
    """Where consecutive rows stand in files that `write_sides` wrote."""

    first: int
    """The number of rows before it."""
    rows: int
    starts: tuple[int, ...]
    """The byte at which each side begins."""
    sizes: tuple[int, ...]
    """The bytes of each side."""

    def read(self, path: str | Path, side: int) -> list[str]:
        """Return the sentences of one side, which is in the file `path`."""
        with open(path, "rb") as file:
            file.seek(self.starts[side])
            return file.read(self.sizes[side]).decode("utf-8").split("\n")[:-1]


def read_lines(path: str | Path) -> Iterator[str]:
    """Yield the lines of a plain or gzip UTF-8 file without their line ends.

    Raises DataError for a file that is missing, is a folder, is damaged gzip, or is not UTF-8 (with the line).
    """
    for number, raw in enumerate(_raw_lines(path), 1):
        yield _decode(raw, str(path), number)


def line_blocks(path: str | Path) -> Iterator[list[str]]:
    """Yield the lines of a file in lists of bounded length; raises DataError as `read_lines` does."""
    lines = read_lines(path)
    return iter(lambda: list(islice(lines, BLOCK_ROWS)), [])


def decode_lines(stream: BufferedReader | ZipExtFile, *, name: str) -> Iterator[str]:
    """Yield the lines of an open plain or gzip stream; `name` stands for it in errors, as in `read_lines`."""
    for number, raw in enumerate(_split(stream, name), 1):
        yield _decode(raw, name, number)


def read_pairs(source: str | Path, target: str | Path) -> Iterator[tuple[str, str]]:
    """Yield line N of `source` with line N of `target`; raises DataError as `read_rows` does."""
    return ((left, right) for left, right in read_rows((source, target)))


def read_rows(paths: Sequence[str | Path]) -> Iterator[Row]:
    """Yield the rows of some files.

    Raises DataError when a file is empty or when one has more lines than another, with the counts.
    """
    for block in read_blocks(paths):
        yield from zip(*decode_block(block, paths), strict=True)


def read_blocks(paths: Sequence[str | Path]) -> Iterator[Block]:
    """Yield the rows of some files in blocks of bounded size; raises DataError as `read_rows` does, UTF-8 apart."""
    readers = [_raw_lines(path) for path in paths]
    first = 0
    while block := _next_block(readers, first, paths):
        yield block
        first += block.rows
    if first == 0:
        raise DataError(_empty(paths))


def decode_block(block: Block, paths: Sequence[str | Path]) -> tuple[list[str], ...]:
    """Return the lines of each side of a block of these files; raises DataError where one is not UTF-8."""
    sides = zip(block.sides, paths, strict=True)
    return tuple(_decode_side(block, side, str(path)) for side, path in sides)


def joined_lines(sentences: Iterable[str]) -> bytes:
    """Return sentences as plain UTF-8 text, one per line."""
    return "".join(f"{sentence}\n" for sentence in sentences).encode("utf-8")


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


def _next_block(
    readers: Sequence[Iterator[bytes]], first: int, paths: Sequence[str | Path]
) -> Block | None:
    """Return the next rows, None at the end of all files."""
    sides: list[list[bytes]] = [[] for _ in readers]
    rows = size = 0
    while rows < BLOCK_ROWS and size < BLOCK_BYTES:
        runs = [list(islice(reader, min(_RUN_ROWS, BLOCK_ROWS - rows))) for reader in readers]
        lengths = [len(run) for run in runs]
        if len(set(lengths)) > 1:
            left = [sum(1 for _ in reader) for reader in readers]
            counts = [
                first + rows + length + rest for length, rest in zip(lengths, left, strict=True)
            ]
            raise DataError(_unequal(paths, counts))
        if not lengths[0]:
            break
        for side, run in zip(sides, runs, strict=True):
            side += run
            size += sum(map(len, run))
        rows += lengths[0]
    return Block(first, rows, tuple(map(b"".join, sides))) if rows else None


def _decode_side(block: Block, side: bytes, name: str) -> list[str]:
    try:
        lines = side.decode("utf-8").split("\n")[: block.rows]
    except UnicodeDecodeError:  # said of the line
        numbered = enumerate(side.split(b"\n"), block.first + 1)
        return [_decode(raw, name, number) for number, raw in numbered]
    if block.first == 0:
        lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
    return [line.removesuffix("\r") for line in lines] if b"\r" in side else lines


def _raw_lines(path: str | Path) -> Iterator[bytes]:
    """Yield the lines of a plain or gzip file with their ends."""
    try:
        with open(path, "rb") as file:
            yield from _split(file, str(path))
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}; give a plain or gzip text file"
        ) from error


def _split(stream: BufferedReader | ZipExtFile, name: str) -> Iterator[bytes]:
    is_gzip = stream.peek(2)[:2] == _GZIP_MAGIC
    number = 0
    try:
        for raw in _unzipped(stream) if is_gzip else stream:
            number += 1
            yield raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{name} cannot be read after line {number:,}: {error}; fetch or write the file again"
        ) from error


def _unzipped(stream: BufferedReader | ZipExtFile) -> BufferedReader:
    # GzipFile looks for line ends in Python
    return BufferedReader(gzip.GzipFile(fileobj=stream), _UNZIPPED_BYTES)


def _unequal(paths: Sequence[str | Path], counts: Sequence[int]) -> str:
    first, *others = (f"{path} has {count:,}" for path, count in zip(paths, counts, strict=True))
    return (
        f"{first} lines and {' and '.join(others)}; "
        "line N of one must be the translation of line N of the other"
    )


def _empty(paths: Sequence[str | Path]) -> str:
    what = " and ".join(map(str, paths))
    return f"{what} {'is' if len(paths) == 1 else 'are'} empty; expected one sentence per line"


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
