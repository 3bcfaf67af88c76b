"""What a plan says of memory and time, against runs: one process that plans and one that trains for each point.

    python benchmarks/plan.py                       # the whole grid
    python benchmarks/plan.py --depths 6 18 --widths 64 --times
    python benchmarks/plan.py --depths 50 --widths 64 --recompute 1 --segments 2 0 --in-backward 0 1

A point is a depth of both stacks, a width, an optimiser, recompute (in segments of so many layers) and a moving average
off or on, and steps after or in the backward pass. The run is the
training loop itself, guard and a checkpoint at the end included, on updates of one batch; its peak is the kernel's
high-water mark less what was held once a model of next to nothing had taken an update. It is measured twice: with
glibc's heap as it is, and with larger tensors outside of it. With --times the plan also times a few layers, to compare
with the run's last update. What is there is not measured again; writes metrics.json and table.md into --out.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measuring import commit, device, versions

MAPPED = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""glibc then gives each tensor above 64 KiB pages of its own, which go back when it is freed."""
UPDATES = 8
"""Of the run with the heap as it is, which leaves more unused from update to update; without it three are enough."""
WORKER = Path(__file__).with_name("plan_worker.py")
MIB = 2**20


@dataclass(frozen=True)
class Point:
    """One cell of the grid."""

    depth: int
    d_model: int
    optimizer: str
    recompute: bool
    ema: bool
    segment: int = 1
    """training.recompute_segment, where it recomputes."""
    in_backward: bool = False

    @property
    def name(self) -> str:
        """What the cell is called in metrics.json."""
        switches = [word for word in ("recompute", "ema", "in_backward") if getattr(self, word)]
        switches += [f"segment{self.segment}"] if self.segment != 1 else []
        return "-".join([f"{self.depth}L", f"d{self.d_model}", self.optimizer, *switches])


def grid(options: argparse.Namespace) -> list[Point]:
    switches = itertools.product(
        options.depths,
        options.widths,
        options.optimizers,
        options.recompute,
        options.ema,
        options.segments,
        options.in_backward,
    )
    return [
        Point(d, w, o, bool(r), bool(e), s, bool(b))
        for d, w, o, r, e, s, b in switches
        if r or s == 1
    ]


def in_process(task: str, point: Point, *extra: str, **environment: str) -> dict[str, float]:
    command = [sys.executable, str(WORKER), task, json.dumps(asdict(point)), *extra]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    if done.returncode:
        raise SystemExit(f"{task} {point.name} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def measure(options: argparse.Namespace) -> None:
    path = options.out / "metrics.json"
    found = json.loads(path.read_text()) if path.exists() else {"points": {}}
    for point in grid(options):
        is_there = point.name in found["points"]
        if options.replan and is_there:
            found["points"][point.name]["planned"] |= in_process("planned", point)
            write(options.out, found)
        if is_there or options.replan:
            continue
        extra = ["--times"] if options.times else []
        row = {
            **asdict(point),
            "planned": in_process("planned", point, *extra),
            "trained": in_process("trained", point, "--updates", str(UPDATES)),
            "mapped": in_process("trained", point, **MAPPED),
            "timed": options.times,
        }
        found["points"][point.name] = row
        found |= {"device": device(), "commit": commit(), "versions": versions()}
        print(point.name, f"{off(row):+.1%}", f"{off(row, 'needed'):+.1%}", flush=True)
        write(options.out, found)


def write(out: Path, found: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "metrics.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    (out / "table.md").write_text(render(found), encoding="utf-8")


def off(row: dict[str, Any], what: str = "peak") -> float:
    """By how much the plan is above the run; what is needed is measured without the heap."""
    measured = row["mapped"]["peak"] if what == "needed" else row["trained"][what]
    return row["planned"][what] / measured - 1


def render(found: dict[str, Any]) -> str:
    rows = sorted(
        found["points"].values(),
        key=lambda row: tuple(
            row.get(key, 1)  # of the points from before there were segments
            for key in ("d_model", "depth", "optimizer", "recompute", "segment", "ema")
        ),
    )
    lines = [
        "# Planned and measured",
        "",
        "Written by `python benchmarks/plan.py`; [README.md](README.md) says what is measured. MiB above the imports.",
        "",
        f"- {_spread('needed', rows)}: the numbers and objects, against runs whose larger tensors lie outside the heap",
        f"- {_spread('peak', rows)}: the same with the heap, against runs with the heap as it is",
        "",
        "| layers | d | optimizer | recompute | in backward | average | needed | measured | off | peak | measured "
        "| off | s planned | s measured |",
        "|---:|---:|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        *map(_line, rows),
        "",
        f"{found['device']}; commit {found['commit']}; torch {found['versions']['torch']}.",
    ]
    return "\n".join(lines) + "\n"


def _spread(what: str, rows: list[dict[str, Any]]) -> str:
    errors = [off(row, what) for row in rows]
    within = sum(abs(error) <= 0.1 for error in errors)
    return (
        f"{what}: off by {statistics.median(map(abs, errors)):.1%} in the median of {len(rows)} points, from "
        f"{min(errors):+.1%} to {max(errors):+.1%}, {within} of them within 10%"
    )


def _line(row: dict[str, Any]) -> str:
    planned, trained, mapped = row["planned"], row["trained"], row["mapped"]
    cells = (
        row["depth"],
        row["d_model"],
        row["optimizer"],
        _recomputed(row),
        "on" if row.get("in_backward") else "off",
        "on" if row["ema"] else "off",
        f"{planned['needed'] / MIB:,.0f}",
        f"{mapped['peak'] / MIB:,.0f}",
        f"{off(row, 'needed'):+.1%}",
        f"{planned['peak'] / MIB:,.0f}",
        f"{trained['peak'] / MIB:,.0f}",
        f"{off(row):+.1%}",
        f"{planned['seconds']:.2f}" if row["timed"] else "",
        f"{trained['seconds']:.2f}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def _recomputed(row: dict[str, Any]) -> str:
    if not row["recompute"]:
        return "off"
    segment = row.get("segment", 1)
    return {1: "by layer", 0: "nested"}.get(segment, f"{segment} layers")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--depths", type=int, nargs="+", default=[6, 18, 50, 100])
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--optimizers", nargs="+", default=["adam", "adafactor", "sgd"])
    parser.add_argument("--recompute", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--ema", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--segments", type=int, nargs="+", default=[1], help="0: nested")
    parser.add_argument("--in-backward", type=int, nargs="+", default=[0])
    parser.add_argument("--times", action="store_true")
    parser.add_argument(
        "--replan", action="store_true", help="only plan once more what has been measured"
    )
    parser.add_argument("--out", type=Path, default=Path("results/plan"))
    return parser.parse_args()


def main() -> None:
    measure(parse())


if __name__ == "__main__":
    main()
