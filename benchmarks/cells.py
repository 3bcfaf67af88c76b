"""Cells of an experiment: a process of one thread each, whose result is a JSON file that is not made twice."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def run_cells(
    names: Sequence[str],
    *,
    out: Path,
    processes: int,
    arguments: Callable[[str], Sequence[str]],
) -> None:
    """Run the script that is running, with a cell's arguments, for each cell without a result in `out`."""
    left = [name for name in names if not result_path(out, name).exists()]
    print(f"{len(left)} of {len(names)} cells to run", flush=True)

    def start(name: str) -> int:
        command = [sys.executable, sys.argv[0], "--out", str(out), *arguments(name)]
        with (out / f"{name}.log").open("w") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            return subprocess.run(command, env=environment, stdout=log, stderr=log).returncode

    with ThreadPoolExecutor(processes) as pool:
        for name, code in zip(left, pool.map(start, left), strict=True):
            print(f"{name}: {'done' if code == 0 else f'exit code {code}'}", flush=True)


def result_path(out: Path, name: str) -> Path:
    """Return where a finished cell's result stands."""
    return out / f"{name}.json"
