"""Which contents files have: their sha256, computed once as long as size and time of change stay what they were."""

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from deepnet.errors import DataError, DeepNetError
from deepnet.record import write_json
from deepnet.seal import file_sha256

_SETTLED = 2 * 10**9
"""Nanoseconds after which another change of a file shows in its time, also where that is kept in steps of 2 s."""


def file_hashes(files: Iterable[Path], *, memory: Path) -> dict[Path, str]:
    """Return the sha256 of each file, from the JSON file `memory` where neither size nor time of change differ.

    Raises DataError where a file cannot be read. A `memory` that cannot be read or written costs the hashing alone.
    """
    known = _recall(memory)
    found, new = {}, {}
    for file in files:
        key = str(file.absolute())
        try:
            before = file.stat()
            remembered = _remembered(known.get(key), before)
            found[file] = remembered or file_sha256(file)
            settled = time.time_ns() - before.st_mtime_ns > _SETTLED
            if not remembered and settled and _mark(file.stat()) == _mark(before):
                new[key] = {**_mark(before), "sha256": found[file]}
        except OSError as error:
            raise DataError(f"cannot read {file}: {error.strerror}; check the path") from error
    if new:
        _remember(memory, known | new)
    return found


def _mark(stat: os.stat_result) -> dict[str, int]:
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _remembered(entry: Any, stat: os.stat_result) -> str | None:
    """Return the sha256 of an entry that is of this size and time, None where it is not or is damaged."""
    mark, sha256 = _mark(stat), entry.get("sha256") if isinstance(entry, dict) else None
    return sha256 if isinstance(sha256, str) and entry == {**mark, "sha256": sha256} else None


def _recall(memory: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        known = json.loads(memory.read_bytes())
        return known if isinstance(known, dict) else {}
    return {}


def _remember(memory: Path, known: dict[str, Any]) -> None:
    with suppress(OSError, DeepNetError):
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_json(memory, known)
