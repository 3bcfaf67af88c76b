"""Training tokens/s and peak memory of ours against four peers, alternated in one run.

    sh benchmarks/setup_peers.sh
    benchmarks/.venv/bin/python benchmarks/training.py --size 6L-6L-d512 --precision bf16
    benchmarks/.venv/bin/python benchmarks/table.py

Each model lives in a process of its own (training_worker.py); in every round each takes a few steps
while the others wait, in an order that changes from round to round. Speeds are compared within a
round. Two instances of ours give the noise floor.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any, TextIO

from measuring import HERE, ratios, save, spread

OURS = "ours_deepnorm"
AGAIN = "ours_deepnorm (again)"
MODELS = (
    OURS,
    "torch_nn",
    "torch_scale",
    "ours_post_ln",
    "marian",
    "x_transformer",
    AGAIN,
)


@dataclass
class Worker:
    """One model's process and what it has measured so far."""

    name: str
    process: subprocess.Popen[str]
    ready: dict[str, Any] = field(default_factory=dict)
    tokens_per_second: list[float] = field(default_factory=list)
    peak_bytes: int = 0

    def ask(self, line: str = "") -> dict[str, float]:
        """Send one line, if any, and wait for the worker's answer."""
        if line:
            print(line, file=self.process.stdin, flush=True)
        reply = self.process.stdout.readline()
        if not reply:
            raise SystemExit(f"{self.name} ended with exit code {self.process.wait()}")
        return json.loads(reply)

    def measure(self, steps: int) -> float:
        """Run `steps` steps: target and source tokens per second, without padding."""
        reply = self.ask(str(steps))
        self.peak_bytes = int(reply["peak_bytes"])
        return steps * self.ready["num_tokens"] / reply["seconds"]

    def report(self) -> dict[str, object]:
        """What goes into the result file."""
        return {
            "parameters": self.ready["parameters"],
            "tokens_per_second": spread(self.tokens_per_second),
            "rounds": self.tokens_per_second,
            "peak_bytes": self.peak_bytes,
            "peak_above_imports_bytes": self.peak_bytes - self.ready["imports_bytes"],
        }


def start(
    name: str,
    *,
    size: str,
    precision: str,
    threads: int,
    device: str = "cpu",
    compiled: str = "eager",
    log: TextIO | None = None,
) -> Worker:
    """Start one model's process, which builds it and then says that it is ready; its errors go to `log`."""
    peer = name.removesuffix(" (again)")
    options = {"precision": precision, "threads": threads, "device": device, "compile": compiled}
    process = subprocess.Popen(
        [sys.executable, str(HERE / "training_worker.py"), peer, size]
        + [f"--{key}={value}" for key, value in options.items()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    return Worker(name, process)


def run_rounds(workers: list[Worker], options: argparse.Namespace) -> None:
    """Warm everyone up, then alternate; every second round runs backwards."""
    for worker in workers:
        worker.ready = worker.ask()
        worker.measure(2)
    for index in range(options.rounds):
        turn = index * 3 % len(workers)
        order = workers[turn:] + workers[:turn]
        for worker in order if index % 2 == 0 else reversed(order):
            worker.tokens_per_second.append(worker.measure(options.steps))
            print(f"round {index + 1}: {worker.name} {worker.tokens_per_second[-1]:.0f} tokens/s")


def summary(workers: list[Worker]) -> dict[str, object]:
    """Everyone's numbers and the ratio of ours to everyone, round by round."""
    ours = workers[0].tokens_per_second
    return {
        "models": {worker.name: worker.report() for worker in workers},
        f"{OURS} relative to": {
            worker.name: ratios(ours, worker.tokens_per_second) for worker in workers[1:]
        },
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", choices=["6L-6L-d512", "100L-100L-d64"], required=True)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5, help="steps of one model in one round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="a shrunk run of these models; nothing is saved")
    return parser.parse_args()


def main() -> None:
    options = parse()
    shared = {"size": options.size, "precision": options.precision, "threads": options.threads}
    workers = [start(name, **shared) for name in options.only or MODELS]
    try:
        run_rounds(workers, options)
    finally:
        for worker in workers:
            worker.process.stdin.close()
            worker.process.wait()
    result = {"config": vars(options), **summary(workers)}
    if options.only:
        print(json.dumps(result, indent=1))
    else:
        print(save(f"training {options.size} {options.precision}", result))


if __name__ == "__main__":
    main()
