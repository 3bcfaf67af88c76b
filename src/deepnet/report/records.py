"""JSON-lines files that may be growing: what is complete is read once, what is damaged is counted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

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

        An unfinished last line is left for the next time. Raises OSError where there is no file.
        """
        with self.path.open("rb") as file:
            status = self.path.stat()
            if status.st_ino != self._inode or status.st_size < self._offset:
                self._records, self.damaged = [], 0
                self._inode, self._offset = status.st_ino, 0
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._add(line)
                self._offset += len(line)
        return list(self._records)

    def _add(self, line: bytes) -> None:
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        if isinstance(value, dict) and type(value.get("step")) is int:
            self._records.append(self._make(value))
        else:
            self.damaged += 1
