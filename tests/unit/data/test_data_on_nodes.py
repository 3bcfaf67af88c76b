import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from deepnet.pipeline.run import prepare_once


@dataclass
class Rank:
    rank: int
    meeting: threading.Barrier

    @property
    def is_writer(self):
        return self.rank == 0

    def wait(self):
        self.meeting.wait(60)


class Disk:
    """What one or more nodes see; says which ranks prepared on it, and who only found."""

    def __init__(self):
        self.made_by = []
        self.is_busy = threading.Lock()

    def prepare(self, rank, report=None):
        if not self.made_by:
            assert self.is_busy.acquire(blocking=False), "two prepare on one disk"
            self.made_by.append(rank)
            self.is_busy.release()
        return self


@pytest.mark.parametrize(("disks", "made_by"), [(1, [[0]]), (3, [[0], [2], [4]])])
def test_text_is_prepared_once_on_each_disk(disks, made_by):
    """Three nodes of two ranks, that share a disk or have one each."""
    seen = [Disk() for _ in range(disks)]
    meeting = threading.Barrier(6)

    def start(rank):
        disk = seen[rank // 2 % disks]
        prepared = prepare_once(
            lambda report=None: disk.prepare(rank, report),
            Rank(rank, meeting),
            print,
            is_first_of_node=rank % 2 == 0,
        )
        assert prepared is disk

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(start, range(6)))
    assert [disk.made_by for disk in seen] == made_by
