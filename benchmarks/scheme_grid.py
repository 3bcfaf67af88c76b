"""Every scheme on Multi30k at 18 + 18 layers: which train, which stop at word frequencies, which diverge.

    DEEPNET_DATA=FOLDER python benchmarks/scheme_grid.py --out runs/scheme_grid
    python benchmarks/scheme_grid.py --out runs/scheme_grid --render

A cell is a scheme, a learning rate (one for all, or the source's own) and a seed. Schemes that are defined for decoders
alone learn the next token of the English side instead, with three others beside them. Cells run in processes of one
thread each; what has a result is not run again, and a cell that was stopped goes on from its last checkpoint.

The rule by which a cell is named, fixed before the first was run:

    diverged   a loss or gradient that is not finite, or a last validation loss above that of equal odds, ln(V - 1)
    plateau    a last validation loss of no less than the entropy of the words' frequencies, less 0.1 nats
    trains     the rest
"""

import argparse
import json
import math
import statistics
from collections import Counter
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cells import result_path, run_cells, train_cell
from deepnet.pipeline.preparing import prepare_data
from deepnet.pipeline.recipe import Recipe, load_recipe
from deepnet.record import write_json
from deepnet.schemes.catalogue import scheme_table
from measuring import commit, device, versions

HERE = Path(__file__).resolve().parent
RECIPES = {
    "translation": HERE / "scheme_grid.toml",
    "next_token": HERE / "scheme_grid_next_token.toml",
}
BESIDE = ("post_ln", "pre_ln", "deepnorm")
RESULTS = HERE.parent / "results" / "scheme_grid"
EVIDENCE = HERE.parent / "src" / "deepnet" / "survey" / "evidence.json"
ABOUT = {
    "translation": "Multi30k, German to English, 18 + 18 layers, d 48, 300 updates",
    "next_token": "Multi30k, next English token, 18 layers, d 48, 300 updates",
}
SEEDS = (1, 2)

OWN_RATES: dict[str, tuple[str, ...]] = {
    # DeepNet, appendix D: 5e-4 to 1.5e-3, its No-LN rows 5e-4
    "post_ln": ("optimizer.lr=5e-4",),
    "pre_ln": ("optimizer.lr=1.5e-3",),
    "post_ln_init": ("optimizer.lr=1.5e-3",),
    "deepnorm": ("optimizer.lr=1.5e-3",),
    "branchnorm": ("optimizer.lr=1.5e-3",),
    "rezero": ("optimizer.lr=5e-4", "schedule.warmup_steps=0"),
    "r_fixup": ("optimizer.lr=5e-4",),
    "t_fixup": ("optimizer.lr=5e-4", "schedule.warmup_steps=0"),
    "admin": ("optimizer.lr=1e-3", "optimizer.name=radam"),
    "dlcl": ("optimizer.lr=2e-3",),
    "normformer": ("optimizer.lr=3e-3",),
    "hybrid_norm": ("optimizer.lr=3e-4",),
    "ngpt": ("schedule.warmup_steps=0",),
}
"""What a scheme's authors trained with, where they say so; a warm-up of theirs becomes the grid's first third."""

OPTIONS: dict[str, tuple[str, ...]] = {
    "branchnorm": ("scheme.T=100",),  # its 4,000 updates are more than the grid has
    "completep": ("optimizer.eps=1e-12",),
    "prores": ("scheme.T=6",),  # 18 layers then have grown in as late as branchnorm's
}
"""What a scheme needs here that its defaults or the grid's do not give."""
SCHEMES_OWN_ENDS = "ends.embedding_lr_multiplier=1.0"
"""The grid compares the schemes as their sources have them; benchmarks/ends.py has the other ends beside them."""


@dataclass(frozen=True)
class Cell:
    """One training run of the grid."""

    task: str
    scheme: str
    rate: str
    seed: int

    @property
    def name(self) -> str:
        """Return the name of the cell's folder."""
        return f"{self.task}-{self.scheme}-{self.rate}-seed{self.seed}"

    def recipe(self) -> Recipe:
        """Return the grid's recipe with what is this cell's."""
        own = OWN_RATES[self.scheme] if self.rate == "own" else ()
        settings = (f"scheme.name={self.scheme}", f"training.seed={self.seed}", SCHEMES_OWN_ENDS)
        return load_recipe(RECIPES[self.task], [*settings, *OPTIONS.get(self.scheme, ()), *own])


def all_cells() -> list[Cell]:
    """Return every cell: first one seed of all schemes, so that a part of the grid is already a table."""
    defined = {row["name"]: row["architectures"] for row in scheme_table()}
    translators = [name for name in defined if "encoder_decoder" in defined[name]]
    decoders = [
        name for name in defined if name not in translators and "decoder_only" in defined[name]
    ]
    rates = [("translation", scheme, "shared") for scheme in translators]
    rates += [("next_token", scheme, "shared") for scheme in (*decoders, *BESIDE)]
    rates += [("translation", scheme, "own") for scheme in translators if scheme in OWN_RATES]
    rates += [("next_token", scheme, "own") for scheme in decoders if scheme in OWN_RATES]
    return [Cell(*rate, seed) for seed in SEEDS for rate in rates]


def word_entropy(recipe: Recipe) -> tuple[float, float]:
    """Return the valid part's loss in nats under the training part's token frequencies, and under equal odds."""
    data = prepare_data(recipe)
    trained, held_out = (
        Counter(token for row in data.dataset(part) for token in row[-1].tolist())
        for part in ("train", "valid")
    )
    size = data.tokenizers.target.vocab_size - 1
    total = (
        sum(trained.values()) + size
    )  # one is added to every count: no token of valid is impossible
    nats = sum(n * -math.log((trained[token] + 1) / total) for token, n in held_out.items())
    return nats / sum(held_out.values()), math.log(size)


def outcome(result: dict[str, Any], entropy: float, equal_odds: float) -> str:
    """Name what became of a cell by the rule above."""
    last = list(result["losses"].values())[-1:]
    if result["stopped"] or not last or last[0] > equal_odds:
        return "diverged"
    return "plateau" if last[0] >= entropy - 0.1 else "trains"


def render(out: Path) -> None:
    """Write the table, the figure and the losses of all finished cells into results/."""
    cells = [cell for cell in all_cells() if result_path(out, cell.name).exists()]
    results = [json.loads(result_path(out, cell.name).read_text()) for cell in cells]
    levels = {task: word_entropy(load_recipe(path)) for task, path in RECIPES.items()}
    for result in results:
        result["outcome"] = outcome(result, *levels[result["task"]])
    RESULTS.mkdir(parents=True, exist_ok=True)
    metrics = {
        "word_entropy_and_equal_odds": levels,
        "device": device(),
        "versions": versions(),
        "commit": commit(),
        "cells": results,
    }
    write_json(RESULTS / "metrics.json", metrics)
    write_json(EVIDENCE, evidence(metrics))
    parts = [f"# {len(results)} of {len(all_cells())} cells are finished\n"]
    for task, (entropy, equal_odds) in levels.items():
        found = [result for result in results if result["task"] == task]
        if found:
            parts.append(table(task, found, entropy, equal_odds))
            draw(found, entropy, RESULTS / f"{task}.png")
    (RESULTS / "table.md").write_text("\n".join(parts))


def evidence(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return what `deepnet schemes NAME` shows of the grid: it comes with the package, which results/ does not."""
    levels = metrics["word_entropy_and_equal_odds"]
    return {
        "command": "DEEPNET_DATA=FOLDER python benchmarks/scheme_grid.py --out runs/scheme_grid",
        "device": metrics["device"],
        "torch": metrics["versions"]["torch"],
        "commit": metrics["commit"],
        "tasks": {
            task: {
                "about": ABOUT[task],
                "word_entropy": round(entropy, 3),
                "equal_odds": round(odds, 3),
            }
            for task, (entropy, odds) in levels.items()
        },
        "schemes": {
            scheme: evidence_rows([r for r in metrics["cells"] if r["scheme"] == scheme])
            for scheme in sorted({result["scheme"] for result in metrics["cells"]})
        },
    }


def evidence_rows(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per task and learning rate: the last loss of each seed, None without one, and what became of it."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in results:
        rows.setdefault((result["task"], result["rate"]), []).append(result)
    return [
        {
            "task": task,
            "rate": rate,
            "losses": {
                str(one["seed"]): round(last_loss(one), 3) if one["losses"] else None
                for one in sorted(found, key=lambda one: one["seed"])
            },
            "outcome": ", ".join(sorted({one["outcome"] for one in found})),
        }
        for (task, rate), found in sorted(rows.items(), key=lambda row: row[0], reverse=True)
    ]


def table(task: str, results: list[dict[str, Any]], entropy: float, equal_odds: float) -> str:
    """Return the table of last validation losses, the lowest first."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in results:
        rows.setdefault((result["scheme"], result["rate"]), []).append(result)
    lines = [
        f"## {task.replace('_', ' ').capitalize()}",
        "",
        "Validation loss in nats per target token after 300 updates; "
        f"word frequencies alone give {entropy:.2f}, equal odds {equal_odds:.2f}.",
        "",
        f"| scheme | learning rate | {' | '.join(f'seed {seed}' for seed in SEEDS)} | outcome |",
        "| --- | --- " + "| --- " * (len(SEEDS) + 1) + "|",
    ]
    for (scheme, rate), found in sorted(rows.items(), key=lambda row: mean_loss(row[1])):
        losses = {result["seed"]: f"{last_loss(result):.3f}" for result in found}
        cells = " | ".join(losses.get(seed, "-") for seed in SEEDS)
        names = ", ".join(sorted({result["outcome"] for result in found}))
        lines.append(f"| `{scheme}` | {rate} | {cells} | {names} |")
    return "\n".join(lines) + "\n"


def last_loss(result: dict[str, Any]) -> float:
    """Return the last validation loss, infinity where there is none."""
    return list(result["losses"].values())[-1] if result["losses"] else math.inf


def mean_loss(results: list[dict[str, Any]]) -> float:
    """Return the mean of the last validation losses."""
    return statistics.mean(last_loss(result) for result in results)


def draw(results: list[dict[str, Any]], entropy: float, path: Path) -> None:
    """Draw every scheme's last validation loss as a dot per seed, the two learning rates apart."""
    order = sorted(
        {r["scheme"] for r in results},
        key=lambda s: mean_loss([r for r in results if r["scheme"] == s]),
    )
    figure = Figure(figsize=(7.5, 0.28 * len(order) + 1.5), layout="constrained")
    axes = figure.add_subplot()
    for rate, marker, colour in (("shared", "o", "#0072B2"), ("own", "^", "#D55E00")):
        found = [r for r in results if r["rate"] == rate and math.isfinite(last_loss(r))]
        places = [order.index(r["scheme"]) for r in found]
        axes.plot(
            [last_loss(r) for r in found],
            places,
            marker,
            color=colour,
            label=f"{rate} learning rate",
        )
    axes.axvline(
        entropy, color="black", linestyle="--", linewidth=1, label="word frequencies alone"
    )
    axes.set_yticks(range(len(order)), order)
    axes.invert_yaxis()
    axes.set_xlabel("validation loss after 300 updates, nats per target token")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=150)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the folder of all cells")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--schemes", nargs="*", help="only these")
    parser.add_argument("--cell", nargs=4, metavar=("TASK", "SCHEME", "RATE", "SEED"))
    parser.add_argument(
        "--render", action="store_true", help="write results/ from what is finished"
    )
    return parser.parse_args()


def main() -> None:
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.cell:
        task, scheme, rate, seed = options.cell
        train_cell(Cell(task, scheme, rate, int(seed)), options.out)
    elif options.render:
        render(options.out)
    else:
        for path in RECIPES.values():
            prepare_data(load_recipe(path), report=print)
        cells = {c.name: c for c in all_cells()}
        chosen = [n for n, c in cells.items() if not options.schemes or c.scheme in options.schemes]
        run_cells(
            chosen,
            out=options.out,
            processes=options.processes,
            arguments=lambda name: ("--cell", *map(str, astuple(cells[name]))),
        )


if __name__ == "__main__":
    main()
