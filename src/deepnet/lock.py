"""A folder that one process at a time writes to."""

import fcntl
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from deepnet.errors import ConfigError

LOCK_FILE = ".lock"
"""The file in the folder that the lock is on; it stays, says who had the lock last, and locks nothing by itself."""


@contextmanager
def locked_folder(path: Path, *, wait: Callable[[str], None] | None = None) -> Iterator[None]:
    """Keep every other process that asks out of a folder for the length of a block.

    The lock is the operating system's and goes with the process, however that ends. Where another process holds it,
    ConfigError is raised, or, with `wait`, that is told which one it is and its end is waited for.
    """
    lock: BaseFileLock = FileLock(path / LOCK_FILE)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        taken = f"{path} is being written by {_holder(path)}"
        if wait is None:
            raise ConfigError(
                f"{taken}; wait until it has ended, stop it, or choose another folder"
            ) from None
        wait(f"{taken}; waiting until it has ended")
        lock.acquire()
    try:
        if not isinstance(lock, SoftFileLock):  # whose file is filelock's own
            (path / LOCK_FILE).write_text(f"process {os.getpid()} on {platform.node()}", "utf-8")
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    """Return what the lock's file says of who has it."""
    try:
        said = (path / LOCK_FILE).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        said = ""
    return " ".join(said.split()) or "another process"


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of a folder; a folder or lock that cannot be read counts as free.

    Nothing is written, so that a run in a folder that may only be read can be watched.
    """
    try:
        with (path / LOCK_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
