"""What the probes cost: time of a run's updates with probes.every = 100 over without, alternated in one run.

    python benchmarks/probe_overhead.py demo
    python benchmarks/probe_overhead.py demo model.encoder_layers=100 model.decoder_layers=100 \
        model.d_model=64 model.ffn_dim=256 model.num_heads=4
    python benchmarks/table.py

Every round trains the recipe three times for as many updates, from the same seed: without probes, with them, and
without again for the noise floor; in an order that changes from round to round. Ratios pair the same round. Wall clock
and CPU time are taken from the end of update 1 to the end of the last, so that 301 updates stand for 300 with three
readings. On a shared machine CPU time is the one to look at.
"""

import argparse
import tempfile
import time
from pathlib import Path

from deepnet.pipeline.recipe import load_recipe
from deepnet.pipeline.run import run_recipe
from deepnet.record import RunFolder, read_jsonl
from measuring import ratios, save, spread

RUNS = {"without": 0, "with": 100, "without (again)": 0}
CLOCKS = {"wall": time.monotonic, "CPU": time.process_time}


def train(options: argparse.Namespace, every: int) -> dict[str, float]:
    """Return the seconds that all updates but the first took, readings of the probes included, by each clock."""
    fixed = [
        f"probes.every={every}",
        f"training.max_steps={options.updates}",
        "training.log_every=1",
        "training.validate_every=0",
        "training.save_every=0",
    ]
    recipe = load_recipe(options.recipe, [*options.overrides, *fixed])
    times: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run_recipe(
            recipe,
            out=out,
            device=options.device,
            score=False,
            sinks=[lambda _: times.append({name: clock() for name, clock in CLOCKS.items()})],
        )
        readings = read_jsonl(RunFolder(out).probes_path)
    assert len(times) == options.updates
    assert len(readings) == (1 + options.updates // every if every else 0)
    return {name: times[-1][name] - times[0][name] for name in CLOCKS}


def run_rounds(options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Warm up, then alternate; every second round runs backwards."""
    train(options, RUNS["with"])
    seconds: dict[str, list[dict[str, float]]] = {name: [] for name in RUNS}
    for index in range(options.rounds):
        for name in list(RUNS)[:: 1 if index % 2 == 0 else -1]:
            seconds[name].append(train(options, RUNS[name]))
            print(f"round {index + 1}: {name} {seconds[name][-1]}", flush=True)
    return seconds


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--updates", type=int, default=301)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


def main() -> None:
    options = parse()
    seconds = run_rounds(options)
    shape = load_recipe(options.recipe, options.overrides).model
    name = f"{shape.encoder_layers}L-{shape.decoder_layers}L-d{shape.d_model}"
    times = {
        clock: {run: [one[clock] for one in values] for run, values in seconds.items()}
        for clock in CLOCKS
    }
    result = {
        "config": vars(options),
        "rounds": seconds,
        "seconds": {
            clock: {run: spread(values) for run, values in runs.items()}
            for clock, runs in times.items()
        },
        "relative to without": {
            clock: {run: ratios(values, runs["without"]) for run, values in runs.items()}
            for clock, runs in times.items()
        },
    }
    print(result["relative to without"])
    print(save(f"probes {name}", result))


if __name__ == "__main__":
    main()
