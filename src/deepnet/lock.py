"""A folder that one process at a time writes to."""

import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deepnet.errors import ConfigError

LOCK_FILE = ".lock"
"""The file in the folder that the lock is on; it stays, says who had the lock last, and locks nothing by itself."""


@contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Keep every other process that asks out of a folder for the length of a block.

    The lock is the operating system's and goes with the process, however that ends. Raises ConfigError, which names the
    process, where another one holds it.
    """
    with (path / LOCK_FILE).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ConfigError(
                f"{path} is being written by {file.read() or 'another process'}; wait until it has ended, "
                "stop it, or choose another folder"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}")
        file.flush()
        yield


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of a folder; a folder or lock that cannot be read counts as free."""
    try:
        with (path / LOCK_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
