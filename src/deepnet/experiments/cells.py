"""The cells of an experiment's grid, each trained once and kept as a JSON file beside the results."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from deepnet.data.corpora import CACHE
from deepnet.errors import ConfigError
from deepnet.experiments.base import Cell, Experiment, FinishedCell
from deepnet.experiments.watching import watch_updates
from deepnet.pipeline.preparing import prepare_data
from deepnet.record import environment, write_json
from deepnet.training.sinks.progress import format_seconds, seconds_left

Report = Callable[[str], None]


def run_cells(
    experiment: Experiment,
    *,
    out: Path,
    processes: int = 1,
    device: str = "auto",
    cache: Path = CACHE,
    report: Report = print,
) -> None:
    """Train the cells that have no file in `out` yet, and say after each what it took and what is left.

    With one process in this one. Raises ConfigError where a file is of a cell of another grid.
    """
    cells = experiment.cells()
    left = [cell for cell in cells if kept_cell(out, cell) is None]
    report(f"{len(cells) - len(left)} of {len(cells)} cells are done")
    if not left:
        return
    prepare_data(experiment.recipe(left[0]), cache=cache, report=report)
    began, done, whole = time.monotonic(), 0, sum(cell.cost for cell in left)
    for number, cell in enumerate(_run_all(experiment, left, out, processes, device, cache), 1):
        done += cell.cost
        seconds = time.monotonic() - began
        remaining = seconds_left(seconds=seconds, progress=done / whole) or 0.0
        report(
            f"{number} of {len(left)}: {cell.name}; {done / seconds:.1f} layers x updates a second, "
            f"{format_seconds(remaining)} left"
        )


def finished_cells(experiment: Experiment, out: Path) -> list[FinishedCell]:
    """Return the cells of the grid that are done."""
    found = (kept_cell(out, cell) for cell in experiment.cells())
    return [one for one in found if one is not None]


def kept_cell(out: Path, cell: Cell) -> FinishedCell | None:
    """Return what is kept of a cell, None where it is not done; raises ConfigError where that is of another grid."""
    path = _path(out, cell)
    if not path.exists():
        return None
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if kept["cell"] != _described(cell):
        raise ConfigError(
            f"{path} is of another grid than this one; choose another folder with --out, or remove that one"
        )
    return FinishedCell(cell, kept["readings"], kept["stopped"])


def run_cell(experiment: Experiment, cell: Cell, out: Path, device: str, cache: Path) -> Cell:
    """Train one cell and keep what was read."""
    recipe = experiment.recipe(cell)
    readings, stopped = watch_updates(
        recipe,
        prepare_data(recipe, cache=cache),
        at=experiment.steps(),
        measures=experiment.measures(),
        sentences=experiment.sentences,
        device=device,
    )
    kept = {"cell": _described(cell), "readings": readings, "stopped": stopped}
    write_json(_path(out, cell), {**kept, "environment": environment()})
    return cell


def _run_all(
    experiment: Experiment,
    cells: Sequence[Cell],
    out: Path,
    processes: int,
    device: str,
    cache: Path,
) -> Iterator[Cell]:
    """Yield each cell when it is done."""
    (out / "cells").mkdir(parents=True, exist_ok=True)
    if processes == 1:
        for cell in cells:
            yield run_cell(experiment, cell, out, device, cache)
        return
    # forked, the workers would share torch's threads of this process
    pool = ProcessPoolExecutor(
        processes, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    )
    try:
        futures: list[Future[Cell]] = [
            pool.submit(run_cell, experiment, cell, out, device, cache) for cell in cells
        ]
        for future in as_completed(futures):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _described(cell: Cell) -> dict[str, Any]:
    return {**asdict(cell), "settings": list(cell.settings)}


def _path(out: Path, cell: Cell) -> Path:
    return out / "cells" / f"{cell.name}.json"
