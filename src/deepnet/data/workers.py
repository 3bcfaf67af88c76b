"""A function computed for many tasks in processes of their own, the results in the order of the tasks.

The processes are plain ones that read tasks from a pipe, not those of `multiprocessing`: a fork inherits locks, and a
spawned one runs the caller's script again. They end with the pipe, however the process ends that holds it.
"""

import os
import pickle
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, islice
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from deepnet.errors import DeepNetError

T = TypeVar("T")
R = TypeVar("R")

_START = (
    "import pickle, sys; sys.path = pickle.load(sys.stdin.buffer); "
    "from deepnet.data.workers import serve; serve()"
)
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_AHEAD = 2
"""Tasks for each process that are read before their results are taken."""
_WORTH = 8
"""So many tasks, of a twentieth of a second or so each, are worth another process, which begins in a quarter of one."""


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """Processes that compute, started as tasks come; none for a few tasks."""

    def __init__(self, count: int):
        """Compute in at most `count` processes; 1 is this one."""
        self.count = count if sys.executable else 1
        self._processes: list[_Process] = []
        self._free: SimpleQueue[_Process] = SimpleQueue()
        self._threads = ThreadPoolExecutor(count)

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the processes, whatever they are at."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()
        self._threads.shutdown()
        for process in self._processes:
            process.close()

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """Yield the result of each task in order; few tasks are read ahead, so that they may be any number.

        What the function raises is raised here. Function, tasks and results are pickled where there are processes.
        Raises DeepNetError when a process has ended.
        """
        tasks = iter(tasks)
        first = list(islice(tasks, _WORTH))
        if self.count == 1 or len(first) < _WORTH:
            yield from map(function, chain(first, tasks))
            return
        waiting: deque[Future[R]] = deque()
        for number, task in enumerate(chain(first, tasks)):
            self._start(min(self.count, 2 + number // _WORTH))
            waiting.append(self._threads.submit(self._call, function, task))
            if len(waiting) > _AHEAD * len(self._processes):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _start(self, number: int) -> None:
        while len(self._processes) < number:
            self._processes.append(_Process())
            self._free.put(self._processes[-1])

    def _call(self, function: Callable[[T], R], task: T) -> R:
        process = self._free.get()
        try:
            return process.call(function, task)
        finally:
            self._free.put(process)


class _Process:
    """One process, and the pipes to and from it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_ONE_THREAD},
            start_new_session=True,  # Ctrl-C is for the process that can clean up
        )
        assert self._process.stdin
        assert self._process.stdout
        self._tasks, self._results = self._process.stdin, self._process.stdout
        self._function: Callable[..., Any] | None = None
        self._send(sys.path)

    def call(self, function: Callable[[T], R], task: T) -> R:
        """Return what the function returns, or raise what it raises."""
        try:
            self._send((None if function is self._function else function, task))
            self._function = function
            succeeded, result = pickle.load(self._results)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            code = self._process.wait()
            raise DeepNetError(
                f"a process that prepares text ended with code {code}; where that is -9 memory may have run out: "
                "use fewer processes"
            ) from error
        if not succeeded:
            raise result
        returned: R = result
        return returned

    def _send(self, message: object) -> None:
        pickle.dump(message, self._tasks, pickle.HIGHEST_PROTOCOL)
        self._tasks.flush()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def close(self) -> None:
        """Wait until it has ended."""
        self._process.wait()
        for pipe in (self._tasks, self._results):
            with suppress(OSError):  # what it was still to be sent
                pipe.close()


def serve() -> None:
    """Compute tasks from standard input until it ends; what is printed meanwhile goes to standard error."""
    results = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    function: Any = None
    with suppress(EOFError, BrokenPipeError):
        while True:
            new, task = pickle.load(sys.stdin.buffer)
            function = function if new is None else new
            pickle.dump(_computed(function, task), results, pickle.HIGHEST_PROTOCOL)
            results.flush()


def _computed(function: Callable[[Any], Any], task: Any) -> tuple[bool, Any]:
    """Return True and the result, or False and what was raised."""
    try:
        return True, function(task)
    except DeepNetError as error:
        return False, error
    except Exception as error:
        error.add_note(f"in a process that prepares text:\n{traceback.format_exc()}")
        return False, error
