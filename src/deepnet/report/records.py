"""JSON-lines files that may be growing: what is complete is read once, what is damaged is counted.

A file that is there as NAME.xz alone, as results/ keeps some, is read like the plain one.
"""

import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

Record = TypeVar("Record")


class RecordFile(Generic[Record]):
    """The records of one file, each an object with an integer "step"."""

    def __init__(self, path: Path, make: Callable[[dict[str, Any]], Record]) -> None:
        self.path = path
        self.damaged = 0
        """Complete lines that hold no such object."""
        self._make = make
        self._records: list[Record] = []
        self._inode, self._offset = -1, 0

    def read(self) -> list[Record]:
        """Return all records so far; of a file that has only grown since, the new lines alone are read.

        An unfinished last line is left for the next time. Raises OSError where there is no file, or one that cannot be
        unpacked.
        """
        try:
            self._read()
        except (lzma.LZMAError, EOFError) as error:
            raise OSError(None, "damaged, or a part of the file") from error
        return list(self._records)

    def _read(self) -> None:
        path = self.found
        with self._open(path) as file:
            status = path.stat()
            if status.st_ino != self._inode or status.st_size < self._offset:
                self._records, self.damaged = [], 0
                self._inode, self._offset = status.st_ino, 0
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._add(line)
                self._offset += len(line)

    @property
    def found(self) -> Path:
        """The file itself, or its packed form where only that is there."""
        packed = self.path.with_name(f"{self.path.name}.xz")
        return packed if packed.exists() and not self.path.exists() else self.path

    def _open(self, path: Path) -> IO[bytes]:
        return lzma.open(path) if path.suffix == ".xz" else path.open("rb")

    def _add(self, line: bytes) -> None:
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if isinstance(value, dict) and type(value.get("step")) is int:
            self._records.append(self._make(value))
        else:
            self.damaged += 1
