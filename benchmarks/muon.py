"""Muon against AdamW in deep stacks: the best of either's rates, then that rate at seeds it was not chosen on.

    DEEPNET_DATA=FOLDER python benchmarks/muon.py --out runs/muon
    python benchmarks/muon.py --out runs/muon --render

Both are searched over the same rates at one seed, by the last loss on valid; with "match_rms_adamw" a rate moves
matrices about as far under either, and beside Muon it is AdamW's, too. Embeddings learn by the default of recipes,
which makes their rate the same in every cell. Then each's best rate is trained at three other seeds, and the
differences are paired by seed; the interval is Student's, 95%. What has a result is not run again, and a cell that was
stopped goes on from its last checkpoint.
"""

import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from cells import result_path, run_groups, study_parser, train_cell
from deepnet.pipeline.recipe import Recipe, load_recipe
from deepnet.record import write_json
from measuring import compared

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "muon"
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SEARCHED, OTHERS = 1, (2, 3, 4)
ROTARY = "model.positions=rotary"
"""Rows that learn fast outgrow sinusoids, which are added to them (docs/ends.md)."""
SETTINGS = {
    "Multi30k, 18 + 18 layers": ("scheme_grid.toml", (ROTARY,)),
    "next token, 24 layers": ("scheme_grid_next_token.toml", (ROTARY, "model.decoder_layers=24")),
}
DECAY = "optimizer.weight_decay=0.1"
OPTIMIZERS = {
    "adamw": ("optimizer.name=adamw", DECAY),
    "muon": ("optimizer.name=muon", DECAY, "optimizer.muon.weight_decay=0.1"),
}


@dataclass(frozen=True)
class Cell:
    """One training run: a setting, an optimiser, its rate and a seed."""

    group: str
    setting: str
    optimizer: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """Return the name of the cell's folder."""
        words = f"{self.setting} {self.optimizer} {self.rate:g} seed{self.seed}"
        return "".join(c if c.isalnum() or c in ".-" else "_" for c in words)

    def recipe(self) -> Recipe:
        """Return the grid's recipe with what is this cell's."""
        file, own = SETTINGS[self.setting]
        chosen = (f"optimizer.lr={self.rate}", f"training.seed={self.seed}")
        return load_recipe(HERE / file, [*own, *OPTIMIZERS[self.optimizer], *chosen])


def searched() -> list[Cell]:
    """Return the cells among which the rates are chosen."""
    return [Cell("search", *one, SEARCHED) for one in product(SETTINGS, OPTIMIZERS, RATES)]


def repeated(out: Path) -> list[Cell]:
    """Return the cells of each best rate, where the search of its setting is finished."""
    return [
        Cell("seeds", setting, optimizer, best, seed)
        for seed, setting, optimizer in product(OTHERS, SETTINGS, OPTIMIZERS)
        if (best := best_rate(out, setting, optimizer)) is not None
    ]


def best_rate(out: Path, setting: str, optimizer: str) -> float | None:
    """Return the rate with the lowest loss on valid, None while one is missing."""
    losses = {
        cell.rate: last_loss(out, cell)
        for cell in searched()
        if (cell.setting, cell.optimizer) == (setting, optimizer)
    }
    found = {rate: loss for rate, loss in losses.items() if loss is not None}
    return min(found, key=found.__getitem__) if len(found) == len(losses) else None


def last_loss(out: Path, cell: Cell) -> float | None:
    """Return a cell's last loss on valid: infinity where it diverged, None where it is not finished."""
    path = result_path(out, cell.name)
    if not path.exists():
        return None
    result: dict[str, Any] = json.loads(path.read_text())
    return math.inf if result["stopped"] else list(result["losses"].values())[-1]


def render(out: Path) -> None:
    """Write the tables and the losses of the finished cells into results/."""
    cells = [*searched(), *repeated(out)]
    paths = [path for cell in cells if (path := result_path(out, cell.name)).exists()]
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_json(RESULTS / "metrics.json", {"cells": [json.loads(p.read_text()) for p in paths]})
    parts = [f"# {len(paths)} of {len(cells)} cells are finished", *search_table(out)]
    (RESULTS / "table.md").write_text("\n".join([*parts, "", *comparison(out), ""]))


def search_table(out: Path) -> Iterable[str]:
    """Yield the last loss on valid at each rate."""
    yield f"\nLast loss on valid, nats per target token, at seed {SEARCHED}; the best in bold.\n"
    yield "| setting | optimiser |" + "".join(f" {rate:g} |" for rate in RATES)
    yield "|---|---|" + "---|" * len(RATES)
    for setting, optimizer in product(SETTINGS, OPTIMIZERS):
        best = best_rate(out, setting, optimizer)
        cells = (Cell("search", setting, optimizer, rate, SEARCHED) for rate in RATES)
        shown = (_shown(last_loss(out, cell), bold=cell.rate == best) for cell in cells)
        yield f"| {setting} | {optimizer} | {' | '.join(shown)} |"


def _shown(loss: float | None, *, bold: bool) -> str:
    if loss is None:
        return ""
    text = f"{loss:.3f}" if math.isfinite(loss) else "diverged"
    return f"**{text}**" if bold else text


def comparison(out: Path) -> Iterable[str]:
    """Yield the paired differences at the best rates."""
    yield "Each at its best rate, at other seeds; a best rate at the end of the grid may not be the best there is.\n"
    yield "| setting | AdamW's rate | Muon's rate | seeds | AdamW | Muon | Muon less AdamW | interval |"
    yield "|---|---|---|---|---|---|---|---|"
    for setting in SETTINGS:
        rates = [best_rate(out, setting, optimizer) for optimizer in OPTIMIZERS]
        adamw, muon = (_losses(out, setting, optimizer) for optimizer in OPTIMIZERS)
        paired = sorted(adamw.keys() & muon.keys())
        if paired:
            named = [f"{rate:g}{_at_end(rate)}" for rate in rates if rate is not None]
            means = [f"{statistics.mean(one[s] for s in paired):.3f}" for one in (adamw, muon)]
            against = compared([muon[seed] - adamw[seed] for seed in paired])
            row = [setting, *named, str(len(paired)), *means, *against]
            yield f"| {' | '.join(row)} |"


def _losses(out: Path, setting: str, optimizer: str) -> dict[int, float]:
    """Return the last loss on valid of each other seed at the best rate."""
    cells = [c for c in repeated(out) if (c.setting, c.optimizer) == (setting, optimizer)]
    return {cell.seed: loss for cell in cells if (loss := last_loss(out, cell)) is not None}


def _at_end(rate: float) -> str:
    return " (end of the grid)" if rate in (RATES[0], RATES[-1]) else ""


def main() -> None:
    options = study_parser(__doc__).parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.cell:
        cells = {cell.name: cell for cell in (*searched(), *repeated(options.out))}
        train_cell(cells[options.cell], options.out)
    elif options.render:
        render(options.out)
    else:
        run_groups(searched(), options)
        run_groups(repeated(options.out), options)


if __name__ == "__main__":
    main()
