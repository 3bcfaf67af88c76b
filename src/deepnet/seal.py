"""Checksums over the files of a folder, so that what was damaged on the way is refused before it is used.

`SHA256SUMS` is in the form that `sha256sum --check` reads. A folder without one is taken as it is: it was written by an
earlier version. The sums tell damage, not malice: whoever writes a file can write its sum.
"""

import errno
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from deepnet.atomic import atomic_write

SUMS_FILE = "SHA256SUMS"
"""The file in the folder with a line for every other one."""
_LINE = re.compile(r"([0-9a-f]{64})  (\S+)")


def seal_folder(folder: Path) -> None:
    """Write the sums of all files of a folder, to be called when the last one is there; reads them once.

    Hidden files are left out: they are those of a folder that is being written.
    """
    paths = sorted(path for path in folder.glob("[!.]*") if path.name != SUMS_FILE)
    lines = [f"{file_sha256(path)}  {path.name}\n" for path in paths]
    with atomic_write(folder / SUMS_FILE) as file:
        file.write("".join(lines).encode())


def unseal_folder(folder: Path) -> None:
    """Remove the sums of a folder whose files are about to change, so that a kill leaves it whole, if unsealed."""
    (folder / SUMS_FILE).unlink(missing_ok=True)


class Seal:
    """The sums of a folder, read once."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / SUMS_FILE
        self._sums = _read(self._file) if self._file.exists() else None

    def find_damage(self, path: Path) -> str | None:
        """Return what is wrong with a file of the folder and what to do, None where nothing is or nothing is known.

        Reads the whole file, at about 1 GB/s. A file that is missing is left to whoever reads it.
        """
        if not path.exists():
            return None
        if not path.is_file():
            return f"{path} is not a file; copy or save it again"
        if self._sums is None:
            return None
        again = f"copy {path.parent} again, or, if you changed it yourself, remove its {SUMS_FILE}"
        if path.name not in self._sums:
            return f"{self._file} is damaged: it has no sum of {path.name}; {again}"
        if self._sums[path.name] != file_sha256(path):
            return f"{path} is damaged: its sha256 is not the one in {SUMS_FILE}; {again}"
        return None


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file's bytes; raises OSError when it cannot be read."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_damage(path: Path) -> str | None:
    """Return what is wrong with a file by the sums of its folder, as `Seal.find_damage` does."""
    return Seal(path.parent).find_damage(path)


def read_regular(path: str | Path) -> bytes:
    """Return the bytes of a file; raises OSError, also for a pipe or a device, which may never end."""
    if Path(path).exists() and not Path(path).is_file():
        raise OSError(errno.EINVAL, "it is not a file")
    return Path(path).read_bytes()


def read_json(path: str | Path) -> Any:
    """Return what a JSON file holds; raises OSError, or ValueError where it is not JSON."""
    try:
        return json.loads(read_regular(path).decode("utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _read(sums: Path) -> dict[str, str]:
    """Return the sum of each name, none where the file is damaged."""
    if not sums.is_file():
        return {}
    lines = sums.read_bytes().decode("utf-8", errors="replace").split("\n")
    found = [_LINE.fullmatch(line) for line in lines[:-1]]
    return {} if lines[-1] or not all(found) else {match[2]: match[1] for match in found if match}
