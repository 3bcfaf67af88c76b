"""How much memory a process may use, where control groups say so."""

import os
from pathlib import Path

import torch

from deepnet.planning.machine import _group_limits, held_bytes, memory_bytes, most_held_bytes

CPU = torch.device("cpu")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_limits_of_a_group_and_of_those_around_it_are_found(tmp_path):
    root = tmp_path / "cgroup"
    write(root / "memory.max", "max\n")
    write(root / "user/job/memory.max", "3000\n")
    write(root / "user/memory.max", "5000\n")
    listing = write(tmp_path / "listing", "0::/user/job\n")
    assert list(_group_limits(listing, root)) == [3000, 5000]


def test_the_first_version_has_a_folder_for_memory(tmp_path):
    root = tmp_path / "cgroup"
    write(root / "memory/job/memory.limit_in_bytes", "7000\n")
    write(root / "cpu/job/memory.limit_in_bytes", "1\n")
    listing = write(tmp_path / "listing", "9:cpu:/job\n5:memory:/job\n")
    assert list(_group_limits(listing, root)) == [7000]
    assert list(_group_limits(tmp_path / "nowhere", root)) == []


def test_a_process_holds_less_than_there_is_and_more_once_it_has_more():
    assert memory_bytes(CPU) <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    before = held_bytes()
    held = torch.ones(2**24)
    assert 0.9 * held.nbytes < held_bytes() - before < 1.2 * held.nbytes
    assert held_bytes() < 1.05 * most_held_bytes(CPU) < memory_bytes(CPU)
