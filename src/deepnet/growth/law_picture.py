"""The law of depth as a picture: the runs, the line through them, and how far off its extrapolations may be."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deepnet.drawing import COLOURS, save_picture
from deepnet.growth.law import Law


def draw_laws(laws: Mapping[str, Law], path: Path) -> None:
    """Write a PNG with each law beside the other, depth on a logarithmic scale."""
    figure = Figure(figsize=(5.5 * len(laws), 4.0), layout="constrained")
    for axes, (measure, law) in zip(
        figure.subplots(1, len(laws), squeeze=False)[0], laws.items(), strict=True
    ):
        _draw(axes, measure, law)
    save_picture(figure, path)


def _draw(axes: Axes, measure: str, law: Law) -> None:
    depths = [point.depth for point in law.points]
    reached = np.geomspace(min([*depths, *law.at]), max([*depths, *law.at]), 50)
    axes.plot(reached, [law.value(depth) for depth in reached], color=COLOURS[0], linewidth=1)
    axes.plot(depths, [point.value for point in law.points], "o", color=COLOURS[1], label="runs")
    for number, (depth, found) in enumerate(law.at.items()):
        half = found.high - found.value
        axes.errorbar(
            depth,
            found.value,
            yerr=half if np.isfinite(half) else None,
            fmt="s",
            capsize=3,
            color=COLOURS[0],
            label=None if number else "a further run (95%)",
        )
    axes.set_xscale("log")
    axes.set(xlabel="layers", ylabel=measure)
    holds = "" if not law.objections else "; the data do not carry it"
    title = f"{law.slope.value:.3g} ln d {law.intercept.value:+.3g}{holds}"
    axes.set_title(title, loc="left", fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
