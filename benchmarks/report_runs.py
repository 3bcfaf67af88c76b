"""The runs that the pages of docs/report.md show: four schemes at 18 + 18 layers, and one of 500 + 500 layers.

    DEEPNET_DATA=FOLDER python benchmarks/report_runs.py --out runs/report

Multi30k by the recipe of the grid of schemes, with readings every 10 updates (every 3 at 500 layers).
"""

import argparse
from pathlib import Path

from cells import result_path, run_cells
from deepnet.pipeline.preparing import prepare_data
from deepnet.pipeline.recipe import load_recipe
from deepnet.pipeline.run import run_recipe
from deepnet.record import write_json

RECIPE = Path(__file__).resolve().parent / "scheme_grid.toml"
SCHEMES = ("deepnorm", "branchnorm", "pre_ln", "post_ln")
DEEP = (
    "scheme.name=deepnorm",
    "model.encoder_layers=500",
    "model.decoder_layers=500",
    "model.d_model=16",
    "model.ffn_dim=32",
    "model.num_heads=2",
    "batching.max_tokens=256",
    "schedule.warmup_steps=20",
    "schedule.decay_steps=90",
    "training.max_steps=90",
    "training.validate_every=45",
    "training.log_every=3",
    "probes.every=3",
)
OVERRIDES: dict[str, tuple[str, ...]] = {
    **{name: (f"scheme.name={name}", "probes.every=10") for name in SCHEMES},
    "branchnorm": ("scheme.name=branchnorm", "scheme.T=100", "probes.every=10"),
    "deepnorm_500": DEEP,
}


def run_one(name: str, out: Path) -> None:
    """Train one run; the translators of 18 layers also translate the test part."""
    finished = run_recipe(
        load_recipe(RECIPE, OVERRIDES[name]), out=out / name, score=name in SCHEMES
    )
    write_json(result_path(out, name), {"stopped": finished.training.stopped})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder of the runs")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--run", help="one run, in this process")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.run:
        run_one(options.run, options.out)
        return
    prepare_data(load_recipe(RECIPE), report=print)
    names = ["deepnorm_500", *SCHEMES]
    run_cells(
        names,
        out=options.out,
        processes=options.processes,
        arguments=lambda name: ("--run", name),
    )


if __name__ == "__main__":
    main()
