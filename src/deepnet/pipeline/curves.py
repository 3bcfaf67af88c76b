"""A picture of runs side by side: training and validation loss over updates."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deepnet.drawing import COLOURS, save_picture
from deepnet.record import read_jsonl

_MARKERS = ("o", "s", "^", "D")


def draw_curves(runs: Mapping[str, Path], path: Path, *, title: str) -> None:
    """Write a PNG of the losses in each named run's metrics.jsonl, in nats per target token."""
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for index, (name, metrics) in enumerate(runs.items()):
        _draw_run(axes, name, metrics, colour=COLOURS[index % 4], marker=_MARKERS[index % 4])
    axes.set_xlabel("updates")
    axes.set_ylabel("nats per target token\nvalidation loss; thin: training loss, label-smoothed")
    axes.set_title(title, loc="left")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(frameon=False)
    save_picture(figure, path, dpi=150)


def _draw_run(axes: Axes, name: str, metrics: Path, *, colour: str, marker: str) -> None:
    records = read_jsonl(metrics)
    trained = [(r["step"], r["loss"]) for r in records if "loss" in r]
    validated = [(r["step"], r["validation_loss"]) for r in records if "validation_loss" in r]
    if trained:
        axes.plot(*zip(*trained, strict=True), color=colour, alpha=0.35, linewidth=1)
    if validated:
        axes.plot(*zip(*validated, strict=True), color=colour, marker=marker, label=name)
