"""The memory of the machine or card that a run is on: how much there is, and how much this process holds."""

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

_GROUPS = Path("/sys/fs/cgroup")


def memory_bytes(device: torch.device) -> int:
    """Return the memory of a card, or on a CPU the machine's, or less where a control group allows less."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_group_limits()])


def held_bytes() -> int:
    """Return the memory that this process holds now, where the system does not say the most it has held so far."""
    pages = Path("/proc/self/statm")
    if not pages.exists():
        return most_held_bytes(torch.device("cpu"))
    return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def most_held_bytes(device: torch.device) -> int:
    """Return the most memory held so far: on a card by tensors, on a CPU by the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _group_limits(listing: Path = Path("/proc/self/cgroup"), root: Path = _GROUPS) -> Iterator[int]:
    """Yield what the control groups of this process allow it, of either version, and those around them."""
    for line in listing.read_text().splitlines() if listing.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount = root / "memory" if controllers else root
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        own = mount / path.lstrip("/")
        for folder in (own, *own.parents):
            file = folder / name
            if (
                folder.is_relative_to(mount)
                and file.is_file()
                and file.read_text().strip().isdigit()
            ):
                yield int(file.read_text())
