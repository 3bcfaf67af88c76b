"""Looped depth: six stored layers that run once, three and six times, with coefficients of either depth.

    DEEPNET_DATA=FOLDER python benchmarks/loops.py --out runs/loops
    python benchmarks/loops.py --out runs/loops --groups looped
    python benchmarks/loops.py --out runs/loops --render

DeepNorm on Multi30k by the recipe of the grid of schemes (300 updates), 6 + 6 layers, the default ends and rotary
angles, which fast rows do not outgrow, in two groups of cells:

    looped   loops 1, 3 and 6; beyond 1 with DeepNorm's alpha and beta of the layers that run (unrolled: the default),
             and of those that are stored
    untied   18 + 18 and 36 + 36 layers with weights of their own, for what the sharing costs

The coefficients that DeepLoop publishes for looped depth (arXiv 2607.13491: exponents 1/2 where DeepNorm has 1/4) are
not among them: its abstract is all that we have of it. A difference is paired by seed; the interval is Student's, 95%.
"""

import json
import math
import statistics
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cells import result_path, run_groups, study_parser, train_cell
from deepnet.pipeline.recipe import Recipe, load_recipe
from deepnet.record import write_json
from measuring import compared

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "loops"
SEEDS = (21, 22, 23)
STORED = 6
ROTARY = "model.positions=rotary"
COLOURS = {"unrolled": "#0072B2", "stored": "#D55E00", "untied": "#555555"}
HEAD = """Last validation loss, nats per target token, mean over the seeds; a run that stopped early counts as infinite.
Beside it the difference from `unrolled` of the same loops at the same seed, with a 95% interval.

| layers that run | loops | coefficients of | seeds | loss | less unrolled | interval | stopped |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Cell:
    """One training run: how often the stored layers run, by whose coefficients, at a seed."""

    group: str
    loops: int
    variant: str
    seed: int

    @property
    def name(self) -> str:
        """Return the name of the cell's folder."""
        return f"{self.group}-{self.loops}-{self.variant}-seed{self.seed}"

    @property
    def running(self) -> int:
        """Return the layers of each stack that run."""
        return STORED * self.loops

    def recipe(self) -> Recipe:
        """Return the grid's recipe with what is this cell's."""
        settings = ["scheme.name=deepnorm", ROTARY, f"training.seed={self.seed}"]
        stored = self.running if self.group == "untied" else STORED
        settings += [f"model.{stack}_layers={stored}" for stack in ("encoder", "decoder")]
        if self.group == "looped":
            settings.append(f"model.loops={self.loops}")
        if self.variant == "stored":
            settings.append("model.coefficient_depth=stored")
        return load_recipe(HERE / "scheme_grid.toml", settings)


def all_cells() -> list[Cell]:
    """Return every cell, one seed of all first."""
    looped = [("looped", 1, "unrolled"), *product(["looped"], (3, 6), ("unrolled", "stored"))]
    untied = [("untied", loops, "untied") for loops in (3, 6)]
    return [Cell(*one, seed) for seed in SEEDS for one in (*looped, *untied)]


def render(out: Path, cells: list[Cell]) -> None:
    """Write the table, the picture and the losses of the cells that are finished into results/."""
    found = [json.loads(p.read_text()) for c in cells if (p := result_path(out, c.name)).exists()]
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_json(RESULTS / "metrics.json", {"cells": found})
    about = f"# {len(found)} of {len(cells)} cells are finished\n\n"
    (RESULTS / "table.md").write_text(about + HEAD + "".join(rows(found)))
    draw(found, RESULTS / "losses.png")


def rows(found: list[dict[str, Any]]) -> list[str]:
    """Return a line of the table for each group of seeds."""
    lines = []
    for loops, variant in dict.fromkeys((r["loops"], r["variant"]) for r in found):
        here = of(found, loops, variant)
        unrolled = of(found, loops, "unrolled")
        less = [here[seed] - unrolled[seed] for seed in here.keys() & unrolled.keys()]
        against = compared(less) if variant != "unrolled" and less else ("", "")
        stopped = sum(math.isinf(loss) for loss in here.values())
        mean = f"{statistics.mean(here.values()):.3f}"
        row = [STORED * loops, 1 if variant == "untied" else loops, variant, len(here), mean]
        lines.append(f"| {' | '.join(map(str, [*row, *against, stopped or '']))} |\n")
    return lines


def of(found: list[dict[str, Any]], loops: int, variant: str) -> dict[int, float]:
    """Return the last loss by seed; infinity of a run that diverged."""
    return {
        one["seed"]: math.inf if one["stopped"] else list(one["losses"].values())[-1]
        for one in found
        if (one["loops"], one["variant"]) == (loops, variant)
    }


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Draw every cell's validation loss over its updates, a panel per number of layers that run."""
    loops = sorted({one["loops"] for one in found})
    figure = Figure(figsize=(4 * max(len(loops), 1), 3.2), layout="constrained")
    for panel, number in enumerate(loops):
        axes = figure.add_subplot(1, len(loops), panel + 1)
        for one in (one for one in found if one["loops"] == number):
            steps, losses = zip(*((int(s), x) for s, x in one["losses"].items()), strict=True)
            axes.plot(steps, losses, color=COLOURS[one["variant"]], alpha=0.7, label=one["variant"])
        axes.set_title(f"{STORED * number} + {STORED * number} layers run")
        axes.set_xlabel("update")
        axes.grid(alpha=0.3)
        handles, names = axes.get_legend_handles_labels()
        axes.legend(dict(zip(names, handles, strict=True)).values(), dict.fromkeys(names))
    if loops:
        figure.axes[0].set_ylabel("validation loss, nats per target token")
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=120)


def main() -> None:
    options = study_parser(__doc__).parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    cells = {cell.name: cell for cell in all_cells()}
    if options.cell:
        train_cell(cells[options.cell], options.out)
    elif options.render:
        render(options.out, list(cells.values()))
    else:
        run_groups(cells.values(), options)


if __name__ == "__main__":
    main()
