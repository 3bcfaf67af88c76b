"""Kernels per layer pair, time and memory of an update: an earlier state of the code against this one.

    git worktree add ../before e7b65c9
    python benchmarks/kernels.py --before ../before/src
    python benchmarks/kernels.py --before ../before/src --rounds 0

What counts as a kernel is said in kernels_worker.py. Updates (forward, loss, backward, AdamW) are timed in one process
per state of the code, which take turns; a second process of this state shows the noise. With `--rounds 0` kernels are
counted and nothing is timed. What else is in --out stays.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measuring import HERE, commit, compared, device, spread, versions
from training import Worker

WORKER = str(HERE / "kernels_worker.py")
CELLS = [
    (name, positions, length, precision)
    for name in ("100L-100L-d64", "6L-6L-d512")
    for positions, length, precision in (
        ("sinusoidal", 22, "fp32"),
        ("rotary", 22, "fp32"),
        ("sinusoidal", 44, "fp32"),
        ("sinusoidal", 22, "bf16"),
    )
]
"""What is timed, under deepnorm: layers and width, positions, tokens of a sentence, precision."""
BEFORE, NOW, AGAIN = "before", "now", "now (again)"
MEASURED = {"cpu_seconds": "CPU s", "wall_seconds": "wall s", "peak_bytes": "peak MB"}


# What is measured -----------------------------------------------------------------------------------------------------


@contextmanager
def workers(cell: Sequence[Any], sources: dict[str, str]) -> Iterator[dict[str, Worker]]:
    """Start one process per state of the code; each is asked for two steps before the clock counts."""
    started: dict[str, Worker] = {}
    try:
        for name, source in sources.items():
            command = [sys.executable, WORKER, *map(str, cell)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            process = subprocess.Popen(command, env=_importing(source), **pipes)
            started[name] = Worker(name, process)
        for worker in started.values():
            worker.ask()
            worker.ask("2")
        yield started
    finally:
        for worker in started.values():
            worker.process.stdin.close()
            worker.process.wait()


def timed(cell: Sequence[Any], sources: dict[str, str], options: argparse.Namespace) -> Any:
    """Return the rounds of a cell: what each state of the code took, in an order that changes."""
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
    with workers(cell, sources) as started:
        for index in range(options.rounds):
            turn = index % len(started)
            order = [*started][turn:] + [*started][:turn]
            for name in order if index % 2 == 0 else reversed(order):
                rounds[name].append(started[name].ask(str(options.steps)))
                print(f"{cell} round {index + 1}: {name} {rounds[name][-1]}", flush=True)
    return {"cell": list(cell), "rounds": rounds}


def _importing(source: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}


# What is written ------------------------------------------------------------------------------------------------------


def render(found: dict[str, Any]) -> str:
    """Return table.md."""
    parts = ["# Kernels, time and memory, before and now"]
    parts += [f"Before is commit {found['before']}. {found['device']}; commit {found['commit']}."]
    parts += [_counted(*(found["kernels"][name] for name in (BEFORE, NOW)))]
    parts += [_timed(found["timed"])] if found.get("timed") else []
    return "\n\n".join(parts) + "\n"


def _counted(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> str:
    header = "| scheme | positions | tokens | forward | | backward | |"
    lines = [header, "| --- | --- | --- | --- | --- | --- | --- |"]
    for old, new in zip(before, now, strict=True):
        cells = [new["scheme"], new["positions"], new["length"]]
        for name in ("forward", "backward"):
            cells += [f"{old[name]} -> {new[name]}", f"{new[name] / old[name] - 1:+.0%}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _timed(cells: list[dict[str, Any]]) -> str:
    """Return a row per cell and measure: both medians, the relative difference, and that of the same code again."""
    lines = [
        "| cell | | before | now | now / before - 1 | 95% | same code | 95% |",
        f"|{' --- |' * 8}",
    ]
    for cell in cells:
        for key, unit in MEASURED.items():
            taken = {
                name: [one[key] / (1e6 if key == "peak_bytes" else 1) for one in rounds]
                for name, rounds in cell["rounds"].items()
            }
            middle = [f"{spread(taken[name])['median']:.3f}" for name in (BEFORE, NOW)]
            row = [" ".join(map(str, cell["cell"])), unit, *middle]
            for a, b in ((NOW, BEFORE), (AGAIN, NOW)):
                row += compared([x / y - 1 for x, y in zip(taken[a], taken[b], strict=True)])
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--before", type=Path, required=True, help="folder of sources of the earlier state"
    )
    parser.add_argument("--cells", default="", help="time those whose name has this in it")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2, help="updates of one process in one round")
    parser.add_argument("--out", type=Path, default=Path("results/kernels"))
    return parser.parse_args()


def compare(options: argparse.Namespace) -> None:
    """Count and time both states, and write what was found after each cell."""
    here, there = str(HERE.parent / "src"), str(options.before.resolve())
    path = options.out / "metrics.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    found |= {"device": device(), "commit": commit(), "versions": versions()}
    found["before"] = _commit_of(options.before)
    found["kernels"] = {
        name: _counted_by(source) for name, source in ((BEFORE, there), (NOW, here))
    }
    options.out.mkdir(parents=True, exist_ok=True)
    cells = [cell for cell in CELLS if options.rounds and options.cells in " ".join(map(str, cell))]
    rows = {tuple(row["cell"]): row for row in found.get("timed", [])}
    for cell in [None, *cells]:
        if cell:
            sources = {BEFORE: there, NOW: here, AGAIN: here}
            rows[cell] = timed(cell, sources, options)
        found["timed"] = [rows[cell] for cell in CELLS if cell in rows]
        path.write_text(json.dumps(found, indent=1) + "\n")
        (options.out / "table.md").write_text(render(found))


def _counted_by(source: str) -> list[dict[str, Any]]:
    command = [sys.executable, WORKER, "count"]
    finished = subprocess.run(command, env=_importing(source), check=True, capture_output=True)
    return json.loads(finished.stdout)


def _commit_of(folder: Path) -> str:
    command = ["git", "-C", str(folder), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    compare(parse())
