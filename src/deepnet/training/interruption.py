"""Ctrl-C and SIGTERM ask the loop to save and stop; a second Ctrl-C stops at once."""

import signal
import threading
from types import FrameType
from typing import Any, Self


class Interruption:
    """While its block runs, `requested` says whether a signal has asked for the end.

    Off the main thread, where Python allows no signal handlers, nothing is caught and `requested` stays False.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
