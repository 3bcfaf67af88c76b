"""A file as a read-only array, without a file handle: a data set may have more files than a process may have open."""

import ctypes
import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FAILED = ctypes.c_void_p(-1).value


def map_file(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the numbers of a file, read from the disk when they are looked at; raises OSError.

    `mmap.mmap` and `numpy.memmap` keep the file open for as long as it is mapped; the operating system need not.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        if not size:
            return np.empty(0, dtype)
        address = _map(descriptor, size, path)
    finally:
        os.close(descriptor)
    held = (ctypes.c_char * size).from_address(address)
    end = weakref.finalize(held, _libc.munmap, address, size)  # arrays hold on to `held`
    end.atexit = False  # when the process ends somebody may still be reading
    numbers: NDArray[Any] = np.frombuffer(memoryview(held), dtype)
    numbers.flags.writeable = False
    return numbers


def _map(descriptor: int, size: int, path: Path) -> int:
    address: int = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
    return address


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
