"""Training on one card, cell by cell: ours eager and compiled, and four peers, at every depth.

    bash benchmarks/gpu.sh                  (the tests first, then this)
    python benchmarks/gpu.py --out runs/gpu --minutes 30

A cell is a model of one size, eager or compiled, in a process of its own (training_worker.py) with a
limit of its own. It leaves one JSON file, also where it failed, and is not run again while that file
is there: several short calls do what one long one does. The cells that matter most come first.
"""

import argparse
import datetime
import importlib.util
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from gpu_table import page
from measuring import commit, device, versions
from training import AGAIN, OURS, Worker, start

SIZES = (
    "6L-6L-d512-256x64",
    "100L-100L-d512-64x64",
    "18L-18L-d512-256x64",
    "100L-100L-d1024-24x64",
)
TINY = ("2L-2L-d32-4x8", "4L-4L-d32-4x8")
PEERS = {
    "torch_nn": "torch",
    "marian": "transformers",
    "torch_scale": "torchscale",
    "x_transformer": "x_transformers",
}
"""The four, and what has to be installed for them."""
SECONDS_PER_ROUND = 2.0
WARM_UP_STEPS = 3
LIMIT_SECONDS = 300.0
"""Of one cell."""


@dataclass(frozen=True)
class Cell:
    """One model of one size, run in one way."""

    size: str
    model: str
    compiled: str
    """What of it is: nothing ("eager"), every layer by itself ("layers"), or the whole ("model")."""

    @property
    def name(self) -> str:
        """What its file is called."""
        return "_".join(
            (self.size, *self.model.replace("(", "").replace(")", "").split(), self.compiled)
        )


def planned(sizes: tuple[str, ...]) -> list[Cell]:
    """All cells, the most valuable first: ours, the peers as they come, compiled, and what tells noise."""
    ways = ("eager", "layers")
    ours = [Cell(size, OURS, way) for size in sizes for way in ways]
    peers = [Cell(size, peer, way) for way in ways for size in sizes for peer in PEERS]
    whole = [Cell(sizes[0], model, "model") for model in (OURS, *PEERS)]
    return [*ours, *peers, *(Cell(size, AGAIN, "layers") for size in sizes), *whole]


def run_cell(cell: Cell, options: argparse.Namespace, *, limit: float) -> dict[str, Any]:
    """What a cell came to: its numbers, or why there are none."""
    package = PEERS.get(cell.model, "torch")
    if importlib.util.find_spec(package) is None:
        return {"failed": f"{package} is not installed"}
    log = options.out / f"{cell.name}.log"
    with log.open("w") as errors, started(cell, options, errors, limit) as worker:
        try:
            return {**measured(worker, options.rounds), "card": worker.ready["card"]}
        except (SystemExit, BrokenPipeError):
            code = worker.process.wait()
    return {"failed": reason(log.read_text(), code, limit=limit)}


@contextmanager
def started(
    cell: Cell, options: argparse.Namespace, errors: TextIO, limit: float
) -> Iterator[Worker]:
    """A cell's process, which has nothing compiled before and is killed after `limit` seconds."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        worker = start(
            cell.model,
            size=cell.size,
            precision=options.precision,
            threads=options.threads,
            device=options.device,
            compiled=cell.compiled,
            log=errors,
        )
        timer = threading.Timer(limit, worker.process.kill)
        timer.start()
        try:
            with worker.process:  # closes its input, at which it ends
                yield worker
        finally:
            timer.cancel()


def measured(worker: Worker, rounds: int) -> dict[str, Any]:
    """Speed over `rounds`, and what the first steps took beyond later ones: compilation, where there is any."""
    worker.ready = worker.ask()
    first = worker.ask(str(WARM_UP_STEPS))["seconds"]
    steps = max(1, min(50, round(SECONDS_PER_ROUND / worker.ask("1")["seconds"])))
    worker.tokens_per_second = [worker.measure(steps) for _ in range(rounds)]
    step = worker.ready["num_tokens"] / statistics.median(worker.tokens_per_second)
    return {
        **worker.report(),
        "step_seconds": step,
        "warm_up_seconds": max(0.0, first - WARM_UP_STEPS * step),
        "flops_per_second": worker.ready["model_flops"] / step,
    }


def reason(log: str, code: int, *, limit: float) -> str:
    """Why a process ended before its time, in one line."""
    if code == -9:
        return f"ended after {limit:.0f} s, its limit, or by the system for its memory"
    lines = [line for line in log.splitlines() if line.strip()]
    return lines[-1][:200] if lines else f"exit code {code}"


def run(cells: list[Cell], options: argparse.Namespace) -> None:
    """Run what has no result yet, until the minutes are over; a cell that they cut short has none."""
    left = [cell for cell in cells if not result_path(cell, options).exists()]
    began = time.monotonic()
    for index, cell in enumerate(left):
        cell_began = time.monotonic()
        limit = min(LIMIT_SECONDS, began + 60 * options.minutes - cell_began)
        found = run_cell(cell, options, limit=limit) if limit > 0 else {}
        took = time.monotonic() - cell_began
        if took >= limit < LIMIT_SECONDS:
            print(f"{len(left) - index} cells are left; the same command goes on with them")
            return
        record(cell, options, {**found, "seconds": took})
        each = (time.monotonic() - began) / (index + 1)
        print(progress(cell, found, index + 1, len(left), each), flush=True)


def result_path(cell: Cell, options: argparse.Namespace) -> Path:
    return options.out / f"{cell.name}.json"


def record(cell: Cell, options: argparse.Namespace, found: dict[str, Any]) -> None:
    """Write a cell's file, whole or not at all."""
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    made = {"date": today, "commit": commit(), "versions": versions(), "host": device()}
    result = {**asdict(cell), "precision": options.precision, **made, **found}
    path = result_path(cell, options)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, indent=1) + "\n")
    temporary.replace(path)


def progress(cell: Cell, found: dict[str, Any], done: int, number: int, each: float) -> str:
    said = found.get("failed") or f"{found['tokens_per_second']['median']:,.0f} tokens/s"
    minutes = each * (number - done) / 60
    return (
        f"{done}/{number} {cell.size} {cell.model} {cell.compiled}: {said}; {minutes:.0f} min left"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--tiny", action="store_true", help="small models: runs every line, measures nothing"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--minutes", type=float, default=35.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def write_page(cells: list[Cell], options: argparse.Namespace) -> Path:
    """Write table.md beside the cells, of those that have a result."""
    paths = [result_path(cell, options) for cell in cells]
    results = [json.loads(path.read_text()) for path in paths if path.exists()]
    tests = options.out / "tests.txt"
    said = tests.read_text().splitlines()[-1].strip("= ") if tests.exists() else "not run"
    command = f"bash benchmarks/gpu.sh --device {options.device}" + " --tiny" * options.tiny
    path = options.out / "table.md"
    path.write_text(page(results, command=command, tests=said))
    return path


def main() -> None:
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    cells = planned(TINY if options.tiny else SIZES)
    try:
        run(cells, options)
    finally:
        print(write_page(cells, options))


if __name__ == "__main__":
    main()
