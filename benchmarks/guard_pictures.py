"""The pictures of benchmarks/guard_runs.py."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from guard_alarms import Run
from guard_faults import FAULTS
from guard_loss import levelled_off
from guard_rivals import TREATMENTS


def draw_faults(differences: Mapping[tuple[str, str], Sequence[float]], path: Path) -> None:
    """Draw by how much each seed ends above its clean run, a panel for each fault, a line for each treatment."""
    figure = Figure(figsize=(13, 5.5), layout="constrained")
    panels: Any = figure.subplots(2, (len(FAULTS) + 1) // 2, sharex=True, sharey=True)
    for axes, fault in zip(panels.flat, FAULTS, strict=False):
        for place, treatment in enumerate(TREATMENTS):
            ends = differences.get((fault, treatment), ())
            axes.plot(ends, [place] * len(ends), "o", color="tab:blue", alpha=0.6)
        axes.axvline(0, color="0.5", linewidth=0.8)
        axes.set(title=fault)
        axes.grid(alpha=0.3)
    first: Axes = panels.flat[0]
    first.set_yticks(range(len(TREATMENTS)), list(TREATMENTS))
    first.invert_yaxis()
    first.set_xscale("symlog", linthresh=0.1)
    first.set_xlim(-0.2, 10)
    figure.supxlabel("last validation loss less the clean run's, nats; no dot: stopped")
    _save(figure, path)


def draw_trouble(runs: Sequence[Run], path: Path) -> None:
    """Draw the losses of runs that do not learn, with what the guard and the loss say, over those that do."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for run in sorted(runs, key=lambda run: not run.is_healthy):
        steps, losses = _smooth(run.losses)
        colour = "0.85" if run.is_healthy else "tab:red"
        axes.plot(steps, losses, color=colour, zorder=1 if run.is_healthy else 2)
        first, says = next(iter(run.incidents), None), levelled_off(run.losses)
        if not run.is_healthy and first:
            axes.axvline(first["step"], color="tab:blue", linestyle="--", linewidth=1)
        if not run.is_healthy and says:
            axes.axvline(says, color="tab:red", linestyle=":", linewidth=1)
    for label, colour, style in (
        ("runs that do not learn", "tab:red", "-"),
        ("the guard says so", "tab:blue", "--"),
        ("the loss says so", "tab:red", ":"),
        ("healthy runs", "0.85", "-"),
    ):
        axes.plot([], [], style, color=colour, label=label)
    axes.set(xlabel="update", ylabel="training loss, nats per token")
    axes.legend(frameon=False)
    _save(figure, path)


def _smooth(losses: Sequence[float], updates: int = 10) -> tuple[list[int], list[float]]:
    """Return the means of so many updates."""
    starts = range(0, len(losses), updates)
    groups = [losses[start : start + updates] for start in starts]
    return [s + len(g) for s, g in zip(starts, groups, strict=True)], [
        statistics.fmean(group) for group in groups
    ]


def _save(figure: Figure, path: Path) -> None:
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=120)
