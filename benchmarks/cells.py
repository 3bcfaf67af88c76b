"""Cells of an experiment: a process of one thread each, whose result is a JSON file that is not made twice."""

import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from deepnet.errors import DivergenceError
from deepnet.pipeline.preparing import prepare_data
from deepnet.pipeline.recipe import Recipe
from deepnet.pipeline.run import run_recipe
from deepnet.record import read_jsonl, write_json
from measuring import commit, device, versions


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


class TrainedCell(Protocol):
    """A cell that trains a recipe; a dataclass."""

    @property
    def name(self) -> str:
        """The name of the cell's folder."""

    def recipe(self) -> Recipe:
        """The recipe with what is this cell's."""


class GroupedCell(TrainedCell, Protocol):
    """One of several groups of cells, at a seed."""

    @property
    def group(self) -> str:
        """The name of the group."""

    @property
    def seed(self) -> int:
        """The seed of the training."""


def run_groups(cells: Iterable[GroupedCell], options: Namespace) -> None:
    """Run the cells of the groups and seeds that the command line names, or all, once their text is prepared."""
    chosen = [
        cell
        for cell in cells
        if (not options.groups or cell.group in options.groups)
        and (not options.seeds or cell.seed in options.seeds)
    ]
    recipes = [cell.recipe() for cell in chosen]
    for recipe in {f"{one.data} {one.tokenizer}": one for one in recipes}.values():
        prepare_data(recipe, report=print)
    run_cells(
        [cell.name for cell in chosen],
        out=options.out,
        processes=options.processes,
        arguments=lambda name: ("--cell", name),
    )


def study_parser(description: str) -> ArgumentParser:
    """Return what the command lines of all studies of groups of cells have."""
    parser = ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder of all cells")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--groups", nargs="*", help="only these")
    parser.add_argument("--seeds", nargs="*", type=int, help="only these")
    parser.add_argument("--cell", help="one cell, by its name, in this process")
    parser.add_argument(
        "--render", action="store_true", help="write results/ from what is finished"
    )
    return parser


def no_more(run: Path) -> dict[str, Any]:
    """Return nothing: the losses of a run are its result."""
    return {}


def train_cell(
    cell: Any, out: Path, *, measure: Callable[[Path], dict[str, Any]] = no_more
) -> None:
    """Train one cell, from its last checkpoint where there is one; write what became of it unless it was stopped.

    `measure` returns what else of the run folder belongs to the result.
    """
    trained: TrainedCell = cell
    run = out / trained.name
    try:
        resume = (run / "recipe.json").exists()
        finished = run_recipe(trained.recipe(), out=run, resume=resume, score=False)
        if finished.training.stopped == "interrupted":
            raise SystemExit(f"{trained.name} was interrupted; run again to go on with it")
        stopped = ""
    except DivergenceError as error:
        stopped = str(error)
    records = read_jsonl(run / "metrics.jsonl")
    losses = {r["step"]: r["validation_loss"] for r in records if "validation_loss" in r}
    made = {"commit": commit(), "versions": versions(), "device": device()}
    result = {**asdict(cell), "losses": losses, "stopped": stopped, **made, **measure(run)}
    write_json(result_path(out, trained.name), result)


def result_path(out: Path, name: str) -> Path:
    """Return where a finished cell's result stands."""
    return out / f"{name}.json"
