"""The tables and the pictures of benchmarks/ends.py, made of the finished cells."""

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cells import GroupedCell, result_path
from deepnet.record import write_json
from measuring import compared

RESULTS = Path(__file__).resolve().parent.parent / "results" / "ends"


def render(out: Path, cells: Sequence[GroupedCell]) -> None:
    """Write the tables, the pictures and the losses of those cells that are finished into results/."""
    found = [json.loads(p.read_text()) for c in cells if (p := result_path(out, c.name)).exists()]
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_json(RESULTS / "metrics.json", {"cells": found})
    parts = [f"# {len(found)} of {len(cells)} cells are finished\n"]
    for group in dict.fromkeys(cell.group for cell in cells):
        results = [result for result in found if result["group"] == group]
        if results:
            parts.append(table(group, results))
            draw(results, RESULTS / f"{group}.png")
    (RESULTS / "table.md").write_text("\n".join(parts))


def table(group: str, results: list[dict[str, Any]]) -> str:
    """Return the last validation loss of each variant and its paired difference from `old`."""
    lines = [
        f"## {group.replace('_', ' ').capitalize()}",
        "",
        "Last validation loss, nats per target token; less `old` at the same seed, with a 95% interval; greedy BLEU on "
        "valid, where it was asked for; of the first seed the entropy of cross-attention at update 100, and the size "
        "(root mean square, median) of what a token enters with in the end, beside which added positions have 0.71.",
        "",
        "| setting | variant | seeds | loss | less old | interval | BLEU | entropy | size |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (setting, variant), losses in _by_variant(results).items():
        shown = statistics.mean(losses.values())
        old = _by_variant(results).get((setting, "old"), {})
        differences = [losses[seed] - old[seed] for seed in losses.keys() & old.keys()]
        against = compared(differences) if variant != "old" else ("", "")
        cells = [r for r in results if (r["setting"], r["variant"]) == (setting, variant)]
        row = [setting, variant, str(len(losses)), f"{shown:.3f}", *against, *_also(cells)]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def _also(cells: list[dict[str, Any]]) -> tuple[str, str, str]:
    """Return the mean BLEU of a variant's cells, and the entropy and the size of the first, where there are any."""
    scores = [list(cell["bleu"].values())[-1] for cell in cells if "bleu" in cell]
    entropy = cells[0].get("cross_entropy", {}).get("100")
    size = cells[0].get("row_size")
    return (
        f"{statistics.mean(scores):.1f}" if scores else "",
        "" if entropy is None else f"{entropy:.2f}",
        "" if size is None else f"{size:.2f}",
    )


def _by_variant(results: Iterable[dict[str, Any]]) -> dict[tuple[str, str], dict[int, float]]:
    """Return the last losses by seed of each variant of each setting; infinity for a run that diverged."""
    losses: dict[tuple[str, str], dict[int, float]] = {}
    for result in results:
        last = list(result["losses"].values())[-1:]
        value = last[0] if last and not result["stopped"] else math.inf
        losses.setdefault((result["setting"], result["variant"]), {})[result["seed"]] = value
    return losses


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Draw every cell's last loss as a dot, a line of dots per setting and variant."""
    rows = _by_variant(results)
    figure = Figure(figsize=(8, 0.26 * len(rows) + 1.2), layout="constrained")
    axes = figure.add_subplot()
    for place, ((_, variant), losses) in enumerate(rows.items()):
        finite = [loss for loss in losses.values() if math.isfinite(loss)]
        colour = "#D55E00" if variant == "old" else "#0072B2"
        axes.plot(finite, [place] * len(finite), "o", color=colour, alpha=0.7)
    axes.set_yticks(range(len(rows)), [f"{setting}: {variant}" for setting, variant in rows])
    axes.invert_yaxis()
    axes.set_xlabel("last validation loss, nats per target token")
    axes.grid(alpha=0.3)
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=120)
