"""Files and folders that appear whole or not at all, whatever ends the process that writes them.

Each is written under a temporary name, .NAME.THREAD.tmp, flushed to the disk and then renamed, so that a kill at any
byte leaves the old one or the new one. SIGTERM removes what is half-written; what `kill -9` or a power cut leaves is
told by the lock that nobody holds on it any more, and removed when the next process begins.
"""

import fcntl
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

from deepnet.errors import DeepNetError

_TEMPORARY = re.compile(r"\.(.+)\.\d+\.tmp")
_HELD = ".held"
"""The file in a temporary folder that its writer has locked."""
_YOUNG_SECONDS = 60.0
"""Age below which a file without a lock may be one whose writer has not locked it yet."""
_OLD_SECONDS = 86400.0
"""Age above which a folder without a lock is nobody's: versions before had none, and some disks know no locks."""


@contextmanager
def atomic_write(path: str | Path) -> Iterator[IO[bytes]]:
    """Yield a binary file that becomes `path` when the block ends well, and nothing otherwise.

    Raises DeepNetError when the disk refuses (full, read-only); the file that was there stays as it was.
    """
    path = Path(path)
    temporary = _temporary(path)
    try:
        with unwound_by_sigterm(), temporary.open("wb") as file:
            _lock(file)
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise DeepNetError(
            f"cannot write {path}: {error.strerror or error}; what was there is unchanged; "
            "make room or choose another folder, and run again"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a new folder that becomes `path` when the block ends well; `path` itself must not exist yet.

    The files in it are flushed to the disk before the rename. Raises OSError as the disk gives it, with nothing left.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path.parent, name=path.name)
    temporary = _temporary(path)
    shutil.rmtree(temporary, ignore_errors=True)
    with unwound_by_sigterm():
        try:
            temporary.mkdir()
            with _held(temporary):
                yield temporary
                (temporary / _HELD).unlink(missing_ok=True)
                for file in temporary.iterdir():
                    _sync(file)
                sync_folder(temporary)
                os.rename(temporary, path)
            sync_folder(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def remove_abandoned(folder: Path, *, name: str | None = None) -> None:
    """Remove what killed processes left half-written in a folder, of every name or of one."""
    for path in folder.glob(".*.tmp"):
        match = _TEMPORARY.fullmatch(path.name)
        if match and name in (None, match[1]) and _is_abandoned(path):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(
                missing_ok=True
            )


@contextmanager
def unwound_by_sigterm() -> Iterator[None]:
    """Let SIGTERM, where it would end the process at once, end it as an exception does, with exit code 143.

    A handler that somebody has set stays, and off the main thread, where Python allows none, nothing is done.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def sync_folder(path: Path) -> None:
    """Flush the entries of a folder to the disk, so that a rename in it survives a power cut."""
    _sync(path)


def _leave(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one must not stop the cleaning up
    raise SystemExit(128 + number)


def _temporary(path: Path) -> Path:
    # the system's number of a thread, which no other has meanwhile, of this process or of another
    return path.with_name(f".{path.name}.{threading.get_native_id()}.tmp")


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a lock in a folder; it is there only once it is held, so that a free one means a dead writer."""
    new = folder / f"{_HELD}.new"
    with new.open("wb") as file:
        if _lock(file):
            new.rename(folder / _HELD)
        else:
            new.unlink()
        yield


def _lock(file: IO[bytes]) -> bool:
    """Lock a file and return True; False where the disk knows no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_abandoned(path: Path) -> bool:
    """Return whether nobody writes a temporary file or folder any more."""
    try:
        age = time.time() - path.stat().st_mtime
        if not path.is_dir():
            return age > _YOUNG_SECONDS and _is_free(path)
        held = path / _HELD
        return _is_free(held) if held.exists() else age > _OLD_SECONDS
    except OSError:
        return False  # it has just gone


def _is_free(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
