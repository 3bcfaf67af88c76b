"""The time that a run has used, all its sessions together."""

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""() -> seconds since some moment; it never goes back."""


class Stopwatch:
    """Counts the seconds of this session on top of those of the earlier ones."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._origin = clock()

    def start(self, *, at: float) -> None:
        """Count from now on, beginning with the seconds that earlier sessions have used."""
        self._origin = self._clock() - at

    def seconds(self) -> float:
        """Return the seconds used until now."""
        return self._clock() - self._origin
