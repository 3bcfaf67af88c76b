"""What each way to train within less memory costs in time: CPU seconds of an update, all ways taking turns.

    python benchmarks/ways.py --depth 18 --rounds 5 --out results/plan/ways.json

Encoder-decoders of DeepNorm, d 64, on the batch of the planning benchmark, one thread; each round times an update of
every way, and ratios pair the same round. Prints a table of medians with the lowest and highest.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch

from deepnet.planning.budget import describe_way, list_ways
from deepnet.planning.timing import Trainee
from measuring import commit, device, versions
from plan import Point
from plan_worker import batch, build, conditions


def measure(depth: int, rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds of an update in each round, by way."""
    point, one = Point(depth, 64, "adam", recompute=False, ema=False), batch()
    asked = conditions(point)
    runs = {
        describe_way(way, asked.training): Trainee(
            build((depth, depth), point), one, replace(asked, training=way)
        )
        for way in list_ways(asked.training, depth=depth, steps_in_backward=True)
    }
    found: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            begun = time.process_time()
            run.update()
            if number:  # the first one allocates
                found[name].append(time.process_time() - begun)
    return found


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--depth", type=int, default=18)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(options.depth, options.rounds)
    first = next(iter(found.values()))
    for name, seconds in found.items():
        ratios = [one / other for one, other in zip(seconds, first, strict=True)]
        print(f"| {name} | {spread(seconds)} | {spread(ratios)} |")
    if options.out:
        told = {"depth": options.depth, "cpu_seconds": found, "device": device()}
        told |= {"commit": commit(), "versions": versions()}
        options.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
