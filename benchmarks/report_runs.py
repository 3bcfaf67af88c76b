"""The runs that the pages of docs/report.md show: four schemes at 18 + 18 layers, and one of 500 + 500 layers.

    DEEPNET_DATA=FOLDER python benchmarks/report_runs.py --out runs/report
    python benchmarks/report_runs.py --out runs/report --keep runs/demo/deepnorm

Multi30k by the recipe of the grid of schemes, with readings every 10 updates (every 3 at 500 layers). The second
command puts what a page is made from into results/report, of these runs and of the one named (the demo's): at most 30
readings, 10 at 500 layers, and no text but the named run's, of whose test part 200 lines.
"""

import argparse
import lzma
import shutil
from pathlib import Path

from cells import result_path, run_cells
from deepnet.pipeline.preparing import prepare_data
from deepnet.pipeline.recipe import load_recipe
from deepnet.pipeline.run import run_recipe
from deepnet.record import write_json
from scheme_grid import SCHEMES_OWN_ENDS

RESULTS = Path(__file__).resolve().parent.parent / "results" / "report"
KEPT = ("recipe.json", "environment.json", "metrics.jsonl", "incidents.jsonl", "bundle/config.json")
RECIPE = Path(__file__).resolve().parent / "scheme_grid.toml"
LARGEST = 1_000_000
"""Bytes of the details of an incident that are kept: at 500 layers they are too many."""
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
        load_recipe(RECIPE, [SCHEMES_OWN_ENDS, *OVERRIDES[name]]),
        out=out / name,
        score=name in SCHEMES,
    )
    write_json(result_path(out, name), {"stopped": finished.training.stopped})


def keep(run: Path, name: str, *, readings: int, lines: int = 0) -> None:
    """Copy what a page needs, less most readings, the weights and all text but so many lines."""
    kept = RESULTS / name
    shutil.rmtree(kept, ignore_errors=True)
    details = (path for path in run.glob("incidents/*.json") if path.stat().st_size < LARGEST)
    for file in (*KEPT, *(str(path.relative_to(run)) for path in details)):
        if (run / file).exists():
            (kept / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(run / file, kept / file)
    found = (run / "probes.jsonl").read_bytes().splitlines(keepends=True)
    chosen = {round(i * (len(found) - 1) / (readings - 1)) for i in range(readings)}
    thinned = b"".join(line for number, line in enumerate(found) if number in chosen)
    (kept / "probes.jsonl.xz").write_bytes(lzma.compress(thinned))
    (kept / "outputs").mkdir()
    for file in (run / "outputs").glob("test.*.txt") if lines else ():
        text = file.read_text(encoding="utf-8").splitlines(keepends=True)
        (kept / "outputs" / file.name).write_text("".join(text[:lines]), encoding="utf-8")
    scores = run / "outputs" / "test.scores.json"
    if scores.exists():
        shutil.copyfile(scores, kept / "outputs" / scores.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder of the runs")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--run", help="one run, in this process")
    parser.add_argument("--keep", type=Path, metavar="RUN", help="fill results/report, with it")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.run:
        run_one(options.run, options.out)
        return
    if options.keep:
        keep(options.keep, "demo", readings=30, lines=200)
        keep(options.out / "deepnorm_500", "deepnorm_500", readings=10)
        for name in SCHEMES:
            keep(options.out / name, name, readings=30)
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
