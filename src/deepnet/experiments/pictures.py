"""Pictures of experiments: lines over depth, layers or updates, with the seeds' spread."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from matplotlib.axes import Axes

from deepnet.drawing import COLOURS as COLOURS
from deepnet.drawing import save_picture as save_picture
from deepnet.experiments.base import FinishedCell
from deepnet.experiments.comparison import Read, over_seeds


def draw_spread(
    axes: Axes, values: Mapping[int, Sequence[float]], *, colour: str, label: str, style: str = "-"
) -> None:
    """Draw the median of the finite values at each place, and from lowest to highest a band."""
    finite = {x: [v for v in found if math.isfinite(v)] for x, found in sorted(values.items())}
    finite = {x: found for x, found in finite.items() if found}
    places = list(finite)
    medians = [statistics.median(found) for found in finite.values()]
    axes.plot(places, medians, style, color=colour, label=label, marker="o", markersize=3)
    low, high = [min(v) for v in finite.values()], [max(v) for v in finite.values()]
    axes.fill_between(places, low, high, color=colour, alpha=0.2, linewidth=0)


def draw_lines(
    axes: Axes,
    cells: Sequence[FinishedCell],
    reads: Mapping[int, Read],
    *,
    lines: Iterable[str],
    layers: int,
) -> None:
    """Draw a line each of what `reads` find at a depth, at the places that they are named by."""
    for colour, line in zip(COLOURS, lines, strict=False):
        points = {x: over_seeds(cells, r, line=line, layers=layers) for x, r in reads.items()}
        draw_spread(axes, points, colour=colour, label=line)


def finish_axes(axes: Axes, *, title: str, x: str, y: str, log: str = "") -> None:
    """Set titles, and logarithmic scales for the axes named in `log` where anything is above 0."""
    axes.set(xlabel=x, ylabel=y)
    if "x" in log and math.isfinite(axes.dataLim.minposx):
        axes.set_xscale("log")
    if "y" in log and math.isfinite(axes.dataLim.minposy):
        axes.set_yscale("log")
    axes.set_title(title, loc="left", fontsize=9)
    axes.grid(alpha=0.3)
