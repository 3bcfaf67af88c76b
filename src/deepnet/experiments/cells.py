"""The cells of an experiment's grid, each trained once and kept as a line of cells.jsonl beside the results."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
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
from deepnet.record import append_jsonl, environment, read_jsonl
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
    """Train the cells that `out` does not have yet, and say after each what it took and what is left.

    With one process in this one. Raises ConfigError where `out` has cells of another grid.
    """
    cells, done = experiment.cells(), {one.cell for one in finished_cells(experiment, out)}
    left = [cell for cell in cells if cell not in done]
    report(f"{len(done)} of {len(cells)} cells are done")
    if not left:
        return
    prepare_data(experiment.recipe(left[0]), cache=cache, report=report)
    began, passed = time.monotonic(), 0
    whole = sum(cost(experiment, cell) for cell in left)
    found = _run_all(experiment, left, processes, device, cache)
    for number, one in enumerate(found, start=1):
        append_jsonl(_path(out), _record(one))
        passed += cost(experiment, one.cell)
        seconds = time.monotonic() - began
        remaining = seconds_left(seconds=seconds, progress=passed / whole) or 0.0
        report(
            f"{number} of {len(left)}: {one.cell.name}; {passed / seconds:.1f} layers x updates a second, "
            f"{format_seconds(remaining)} left"
        )


def cost(experiment: Experiment, cell: Cell) -> int:
    """Return updates times layers, by which the time left is told; a reading takes about as long as an update."""
    readings = sum(step <= cell.updates for step in experiment.steps())
    return cell.layers * (cell.updates + readings)


def finished_cells(experiment: Experiment, out: Path) -> list[FinishedCell]:
    """Return the cells of the grid that are done; raises ConfigError where `out` has cells of another grid."""
    kept = {record["name"]: record for record in read_jsonl(_path(out))}
    done = [(cell, kept[cell.name]) for cell in experiment.cells() if cell.name in kept]
    for cell, record in done:
        if record["cell"] != _described(cell):
            raise ConfigError(
                f"{cell.name} in {_path(out)} is of another grid than this one; choose another folder with --out, or "
                "remove that file"
            )
    return [FinishedCell(cell, record["readings"], record["stopped"]) for cell, record in done]


def run_cell(experiment: Experiment, cell: Cell, device: str, cache: Path) -> FinishedCell:
    """Train one cell and return what was read."""
    recipe = experiment.recipe(cell)
    readings, stopped = watch_updates(
        recipe,
        prepare_data(recipe, cache=cache),
        at=experiment.steps(),
        measures=experiment.measures(),
        sentences=experiment.sentences,
        device=device,
    )
    return FinishedCell(cell, readings, stopped)


def _run_all(
    experiment: Experiment, cells: Sequence[Cell], processes: int, device: str, cache: Path
) -> Iterator[FinishedCell]:
    """Yield each cell when it is done."""
    if processes == 1:
        for cell in cells:
            yield run_cell(experiment, cell, device, cache)
        return
    # forked, the workers would share torch's threads of this process
    pool = ProcessPoolExecutor(
        processes, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    )
    try:
        futures = [pool.submit(run_cell, experiment, cell, device, cache) for cell in cells]
        for future in as_completed(futures):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _record(one: FinishedCell) -> dict[str, Any]:
    made = environment()
    return {
        "name": one.cell.name,
        "cell": _described(one.cell),
        "readings": one.readings,
        "stopped": one.stopped,
        **{key: made[key] for key in ("time", "git_commit", "cpu", "packages")},
    }


def _described(cell: Cell) -> dict[str, Any]:
    return {**asdict(cell), "settings": list(cell.settings)}


def _path(out: Path) -> Path:
    return out / "cells.jsonl"
