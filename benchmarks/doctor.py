"""The doctor on the 40 cells of DeepNet's Table 1: what it says of each before anything is trained, and what was so.

    python benchmarks/doctor.py --out runs/doctor --groups 6 18 --processes 1
    python benchmarks/doctor.py --out runs/doctor --render

A cell is a scheme at so many layers a side; a group is a depth. Table 1 says which of them diverged on WMT-17 En-De (d
512, Adam, lr 1.5e-3, without norms 5e-4, 4,000 updates of warm-up, fp16). The doctor gets that recipe at the width of
its proxy on the text of the package. What has a result is not run again. Rendering writes a line per cell, the
agreement, and that of a risk calibrated without the scheme, or without the depth, that it is asked of.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from cells import result_path, run_groups, study_parser
from deepnet.doctor.of_recipe import examine_recipe
from deepnet.doctor.risk import Weights, feature, logistic, shipped_weights
from deepnet.pipeline.recipe import Recipe, load_recipe
from deepnet.record import write_json
from measuring import commit, device, versions

RECIPE = Path(__file__).with_suffix(".toml")
RESULTS = Path(__file__).parents[1] / "results" / "doctor"
DEPTHS = (6, 18, 50, 100)
TRAINED = {
    "post_ln": (6,),
    "ds_init": (6,),
    "admin": (6, 18),
    "rezero": (6,),
    "r_fixup": (6, 18, 50),
    "t_fixup": (6, 18, 50),
    "pre_ln": (6, 18, 50, 100),
    "dlcl": (6, 18, 100),
    "normformer": (6, 18, 50),
    "deepnorm": (6, 18, 50, 100),
}
"""At which layers a side a scheme converged; at the others of DEPTHS it diverged. DeepNet, Table 1."""
WITHOUT_NORMS = ("rezero", "r_fixup", "t_fixup")
POST_NORMS = ("post_ln", "ds_init", "admin")
SETTLED_ON = {("post_ln", 6), ("post_ln", 18), ("deepnorm", 6), ("deepnorm", 18), ("pre_ln", 6)}
"""Schemes and layers of the cells that were in sight when signs and limits were settled."""
PENALTY = 0.02
"""Of the squares of the weights, beside the mean log loss; fixed before anything was fitted."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """A scheme at a depth."""

    scheme: str
    layers: int
    seed: int = 1

    @property
    def name(self) -> str:
        """Return the name of the cell's files."""
        return f"{self.scheme}-{self.layers}-seed{self.seed}"

    @property
    def group(self) -> str:
        """Return the depth."""
        return str(self.layers)

    @property
    def diverged(self) -> bool:
        """Return what Table 1 says."""
        return self.layers not in TRAINED[self.scheme]

    def recipe(self) -> Recipe:
        """Return the paper's recipe with what is this cell's."""
        rate = 5e-4 if self.scheme in WITHOUT_NORMS else 1.5e-3
        return load_recipe(
            RECIPE,
            [
                f"scheme.name={self.scheme}",
                f"model.encoder_layers={self.layers}",
                f"model.decoder_layers={self.layers}",
                f"optimizer.lr={rate}",
                f"training.seed={self.seed}",
            ],
        )


def all_cells() -> list[Cell]:
    """Return every cell, the shallow ones first."""
    return [Cell(scheme, layers) for layers, scheme in product(DEPTHS, TRAINED)]


def examine_cell(cell: Cell, out: Path) -> None:
    """Ask the doctor of one cell, and write what it says."""
    began, used = time.monotonic(), time.process_time()
    found = examine_recipe(cell.recipe()).to_dict()
    spent = {
        "seconds": round(time.monotonic() - began),
        "cpu_seconds": round(time.process_time() - used),
    }
    made = {"commit": commit(), "versions": versions(), "device": device()}
    write_json(
        result_path(out, cell.name),
        {**asdict(cell), "diverged": cell.diverged, **found, **spent, **made},
    )


def named_baseline(row: Row) -> bool:
    """Say that a cell diverges by naming its scheme: post-norms but DeepNorm, and no norms, from 18 layers on."""
    return row["scheme"] in (*POST_NORMS, *WITHOUT_NORMS) and row["layers"] >= 18


def features(row: Row, names: Sequence[str]) -> list[float]:
    """Return what the weights multiply; a sign that a trial could not show counts nothing."""
    return [feature(row["signs"][name]) if name in row["signs"] else 0.0 for name in names]


def calibrate(rows: Sequence[Row], *, how: str = "") -> Weights:
    """Return the weights of the least penalised mean log loss on the rows; none of them is below 0."""
    names = list(shipped_weights().signs)
    x = torch.tensor([features(row, names) for row in rows], dtype=torch.float64)
    y = torch.tensor([float(row["diverged"]) for row in rows], dtype=torch.float64)
    bias = torch.zeros((), dtype=torch.float64, requires_grad=True)
    raw = torch.ones(len(names), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([bias, raw], max_iter=500, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        weights = raw.square()  # of any sign, their squares are not below 0
        scores = bias + x @ weights
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, y)
        loss = loss + PENALTY * (weights.square().sum() + 0.1 * bias.square())
        loss.backward()
        return loss

    optimizer.step(closure)
    return Weights(
        bias=bias.item(), signs=dict(zip(names, raw.square().tolist(), strict=True)), how=how
    )


def risk_by(weights: Weights, row: Row) -> float:
    """Return the risk of a row by other weights than the shipped ones."""
    names = list(weights.signs)
    terms = zip(weights.signs.values(), features(row, names), strict=True)
    return logistic(weights.bias + sum(weight * x for weight, x in terms))


def left_out(rows: Sequence[Row], key: str) -> Iterator[tuple[Row, float]]:
    """Yield each row with its risk by weights that were fitted without the rows that have its value of `key`."""
    for value in dict.fromkeys(row[key] for row in rows):
        rest = [row for row in rows if row[key] != value]
        if len({row["diverged"] for row in rest}) == 2:
            weights = calibrate(rest)
            yield from ((row, risk_by(weights, row)) for row in rows if row[key] == value)


def summary(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return agreement and Brier score of each way to say what diverges."""
    both = len({row["diverged"] for row in rows}) == 2
    fitted = calibrate(rows) if both else None
    ways: dict[str, list[tuple[Row, float]]] = {
        "the doctor, as it is shipped": [(row, row["risk"]) for row in rows],
        "calibrated on all of these": [(row, risk_by(fitted, row)) for row in rows if fitted],
        "calibrated without the cell's scheme": list(left_out(rows, "scheme")),
        "calibrated without the cell's depth": list(left_out(rows, "layers")),
        "by naming the scheme": [(row, float(named_baseline(row))) for row in rows],
        "that all train": [(row, 0.0) for row in rows],
    }
    ways["the doctor, on cells that nothing was settled on"] = [
        (row, row["risk"]) for row in rows if (row["scheme"], row["layers"]) not in SETTLED_ON
    ]
    return {name: _scores(pairs) for name, pairs in ways.items() if _tells(name, pairs)}


def _tells(name: str, pairs: Sequence[tuple[Row, float]]) -> bool:
    """Return whether a way was asked, and one that leaves cells out of cells of both outcomes."""
    return bool(pairs) and (
        "without" not in name or len({row["diverged"] for row, _ in pairs}) == 2
    )


def _scores(pairs: Sequence[tuple[Row, float]]) -> dict[str, float]:
    right = sum((risk > 0.5) == row["diverged"] for row, risk in pairs)
    brier = sum((risk - row["diverged"]) ** 2 for row, risk in pairs) / len(pairs)
    return {"right": right, "of": len(pairs), "brier": round(brier, 4)}


def render(out: Path) -> None:
    """Write results/doctor from the finished cells."""
    paths = [path for cell in all_cells() if (path := result_path(out, cell.name)).exists()]
    rows: list[Row] = [json.loads(path.read_text()) for path in paths]
    RESULTS.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row, ensure_ascii=False) for row in rows)
    (RESULTS / "cells.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (RESULTS / "table.md").write_text("\n".join([*_page(rows), ""]))
    write_json(RESULTS / "metrics.json", {"cells": len(rows), **summary(rows)})


def _page(rows: Sequence[Row]) -> Iterator[str]:
    yield f"# The doctor on DeepNet's Table 1: {len(rows)} of {len(all_cells())} cells are finished\n"
    yield "`python benchmarks/doctor.py --out runs/doctor`, seed 1. Risk above 0.5 counts as diverging.\n"
    yield "Signs and limits were settled with the cells marked * in sight, so that these prove nothing.\n"
    yield "| way to say what diverges | right | Brier score |"
    yield "|---|---|---|"
    for name, scores in summary(rows).items():
        yield f"| {name} | {scores['right']} of {scores['of']} | {scores['brier']:.3f} |"
    signs = list(shipped_weights().signs)
    yield "\nUnits beyond the limit of each sign, by the limits of the commit in cells.jsonl, and what came of it.\n"
    yield f"| scheme | layers a side | Table 1 | verdict | risk | {' | '.join(signs)} | CPU s |"
    yield "|---|---|---|---|---|" + "---|" * (len(signs) + 1)
    for row in rows:
        yield f"| {' | '.join(_columns(row, signs))} |"


def _columns(row: Row, signs: Sequence[str]) -> list[str]:
    said = "diverged" if row["diverged"] else "trained"
    excess = [f"{row['signs'][name]:+.1f}" if name in row["signs"] else "" for name in signs]
    first = [f"`{row['scheme']}`", str(row["layers"]), said, row["verdict"], f"{row['risk']:.2f}"]
    if (row["scheme"], row["layers"]) in SETTLED_ON:
        first[0] += " *"
    return [*first, *excess, str(row["cpu_seconds"])]


def main() -> None:
    options = study_parser(__doc__ or "").parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.cell:
        cells = {cell.name: cell for cell in all_cells()}
        examine_cell(cells[options.cell], options.out)
    elif options.render:
        render(options.out)
    else:
        run_groups(all_cells(), options)


if __name__ == "__main__":
    main()
