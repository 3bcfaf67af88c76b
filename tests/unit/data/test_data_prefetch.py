import threading
from itertools import islice

import pytest

from deepnet.data.prefetch import AHEAD, Prefetched
from deepnet.errors import DataError
from deepnet.training.batches import updates_from


class Loader:
    """Updates of epochs of four: their epoch and place stand for them."""

    def __init__(self, fails_at=None):
        self.fails_at = fails_at
        self.made = []

    def updates(self, epoch, start=0):
        for place in range(start, 4):
            if (epoch, place) == self.fails_at:
                raise DataError("row 7 is damaged") from OSError("input/output error")
            self.made.append((epoch, place))
            yield epoch, place

    def updates_per_epoch(self, epoch):
        return 4


def _threads():
    return [thread for thread in threading.enumerate() if thread.name == "updates"]


def _taken(loader, epoch, start, number):
    return [
        (position.update, position.ends_epoch)
        for position in islice(updates_from(loader, epoch=epoch, start=start), number)
    ]


@pytest.mark.parametrize(("epoch", "start"), [(0, 0), (0, 3), (2, 1), (5, 4)])
def test_updates_are_those_of_the_loader_from_any_place_on(epoch, start):
    with Prefetched(Loader()) as ahead:
        if start == 4:  # where a checkpoint was saved behind the last one
            assert list(ahead.updates(epoch, start)) == []
            epoch, start = epoch + 1, 0
        assert _taken(ahead, epoch, start, 11) == _taken(Loader(), epoch, start, 11)
        assert ahead.updates_per_epoch(epoch) == 4
    assert _threads() == []


def test_going_back_begins_anew_and_leaves_one_thread():
    with Prefetched(Loader()) as ahead:
        first = ahead.updates(0)
        assert list(islice(first, 3)) == [(0, 0), (0, 1), (0, 2)]
        assert list(islice(ahead.updates(0, 1), 2)) == [(0, 1), (0, 2)]
        assert len(_threads()) == 1
        with pytest.raises(RuntimeError, match="ask for them again"):
            next(first)
    assert _threads() == []


def test_the_next_epoch_is_made_before_it_is_asked_for():
    loader = Loader()
    made = threading.Event()
    loader.made = _Noticing((1, 0), made)
    with Prefetched(loader) as ahead:
        assert len(list(islice(ahead.updates(0), 3))) == 3
        assert made.wait(60)


class _Noticing(list):
    def __init__(self, awaited, event):
        super().__init__()
        self.awaited, self.event = awaited, event

    def append(self, item):
        super().append(item)
        if item == self.awaited:
            self.event.set()


def test_no_more_are_made_ahead_than_said():
    loader = Loader()
    with Prefetched(loader) as ahead:
        updates = ahead.updates(0)
        taken = [next(updates) for _ in range(2)]
        _threads()[0].join(0.3)
        assert len(loader.made) <= len(taken) + AHEAD + 1  # one is being handed over


def test_an_error_comes_when_it_is_its_turn_with_its_cause():
    with Prefetched(Loader(fails_at=(1, 2))) as ahead:
        positions = updates_from(ahead, epoch=0, start=0)
        assert [next(positions).update for _ in range(5)] == [
            *((0, place) for place in range(4)),
            (1, 0),
        ]
        with pytest.raises(DataError, match="row 7 is damaged") as caught:
            next(positions)
        assert isinstance(caught.value.__cause__, OSError)
        assert any(entry.name == "updates" for entry in caught.traceback)
        with pytest.raises(
            DataError, match="row 7 is damaged"
        ):  # and again whenever it is asked for
            list(ahead.updates(1, 2))
    assert _threads() == []


def test_an_error_in_the_loop_leaves_no_thread():
    def loop():
        with Prefetched(Loader()) as ahead:
            next(ahead.updates(0))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop()
    assert _threads() == []


def test_a_loader_that_is_never_asked_starts_no_thread():
    with Prefetched(Loader()):
        assert _threads() == []
