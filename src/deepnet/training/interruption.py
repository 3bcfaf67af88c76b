"""Ctrl-C and SIGTERM ask the loop to save and stop; a second Ctrl-C stops at once.

A second SIGTERM does not: a launcher and the system behind it may both send one to a process that is already saving.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class _BreakOff(BaseException):
    """Leaves a computation, past whatever it does about errors."""


class Interruption:
    """While its block runs, `requested` says whether a signal has asked for the end.

    Off the main thread, where Python allows no signal handlers, nothing is caught and `requested` stays False.
    """

    def __init__(self) -> None:
        self.requested = False
        self._breaks_off = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def unless_requested(self, compute: Callable[[], T]) -> T | None:
        """Return what `compute` returns; None as soon as a signal asks for the end, or where one has."""
        try:
            self._breaks_off = True
            try:
                return None if self.requested else compute()
            finally:
                self._breaks_off = False
        except _BreakOff:
            return None

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore(signal.SIGINT)
        if self._breaks_off:
            self._breaks_off = False
            raise _BreakOff

    def _restore(self, *numbers: signal.Signals) -> None:
        for number in numbers or tuple(self._previous):
            if number in self._previous:
                signal.signal(number, self._previous.pop(number))
