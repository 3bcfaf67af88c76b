"""Updates made in a thread, ahead of the loop that takes them.

One thread is enough: it makes 30 million tokens a second. It goes on from epoch to epoch, so that the plan of the next
one is ready, too. What it makes is a function of epoch and place; nothing has to be saved.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Self

from deepnet.data.loader import Update, UpdateLoader

AHEAD = 4
"""How many updates are made ahead."""


class Prefetched:
    """The updates of a loader, the next ones made while one is computed."""

    def __init__(self, loader: UpdateLoader, *, pinned: bool = False):
        """Make them in memory that is `pinned`, where they go to a GPU from."""
        self.loader, self.pinned = loader, pinned
        self._thread: _Ahead | None = None

    def __enter__(self) -> Self:
        """Return it; the thread begins with the first update that is asked for."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the thread."""
        self._stop()

    def updates(self, epoch: int, start: int = 0) -> Iterator[Update]:
        """Yield the updates of an epoch from the `start`-th on; raises what making them raises, when it is their turn.

        Where they are not the next ones of the thread, it begins anew there, and who took from it has to ask again.
        """
        if self._thread is None or self._thread.following != (epoch, start):
            self._stop()
            self._thread = _Ahead(self.loader, epoch, start, pinned=self.pinned)
        return self._thread.rest_of_epoch()

    def updates_per_epoch(self, epoch: int) -> int:
        """Return the number of updates of an epoch, as the loader does."""
        return self.loader.updates_per_epoch(epoch)

    def _stop(self) -> None:
        if self._thread:
            self._thread.stop()
        self._thread = None


@dataclass(frozen=True)
class _EndOfEpoch:
    pass


class _Ahead:
    """A thread that makes updates from a place on until it is stopped."""

    def __init__(self, loader: UpdateLoader, epoch: int, start: int, *, pinned: bool):
        self.following: tuple[int, int] | None = (epoch, start)
        """The epoch and place of the update that is to be taken next; None where there is none any more."""
        self._loader, self._pinned = loader, pinned
        self._made: SimpleQueue[Update | _EndOfEpoch | BaseException] = SimpleQueue()
        self._room = Semaphore(AHEAD)
        self._stopped = False
        self._thread = Thread(target=self._make, args=(epoch, start), name="updates", daemon=True)
        self._thread.start()

    def rest_of_epoch(self) -> Iterator[Update]:
        """Yield the updates of the epoch that are left."""
        place = self.following
        while place and place == self.following:
            made = self._made.get()
            self._room.release()
            if isinstance(made, BaseException):
                self.following = None
                raise made
            if isinstance(made, _EndOfEpoch):
                self.following = (place[0] + 1, 0)
                return
            self.following = place = (place[0], place[1] + 1)
            yield made
        raise RuntimeError("the updates went on elsewhere; ask for them again")

    def stop(self) -> None:
        """Wait until the thread has ended."""
        self.following, self._stopped = None, True
        self._room.release()
        self._thread.join()

    def _make(self, epoch: int, start: int) -> None:
        try:
            while self._make_epoch(epoch, start):
                epoch, start = epoch + 1, 0
        except BaseException as error:  # whoever takes the next update is told
            self._made.put(error)

    def _make_epoch(self, epoch: int, start: int) -> bool:
        """Return False where it was stopped."""
        for update in self._loader.updates(epoch, start):
            if not self._put(update.pinned() if self._pinned else update):
                return False
        return self._put(_EndOfEpoch())

    def _put(self, made: Update | _EndOfEpoch) -> bool:
        """Hand over when there is room; return False where it was stopped meanwhile."""
        self._room.acquire()
        if not self._stopped:
            self._made.put(made)
        return not self._stopped
