"""The picture of a depth coordinate check: a panel per quantity over depth, a line per number of updates."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from deepnet.doctor.growth import DepthCheck
from deepnet.experiments.pictures import COLOURS, finish_axes, save_picture
from deepnet.record import write_json


def write_depth_check(found: DepthCheck, out: Path) -> None:
    """Write coordinates.png and coordinates.json into the folder `out`, which is made if need be."""
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "coordinates.json", found.to_dict())
    save_picture(draw_depth_check(found), out / "coordinates.png")


def draw_depth_check(found: DepthCheck) -> Figure:
    """Return a panel per quantity: its median over the layers against depth, both logarithmic."""
    quantities = list(found.medians(found.updates[-1]))
    figure = Figure(figsize=(3.6 * len(quantities), 3.6), layout="constrained")
    for axes, quantity in zip(figure.subplots(1, len(quantities)), quantities, strict=True):
        _draw(axes, found, quantity)
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


def _draw(axes: Axes, found: DepthCheck, quantity: str) -> None:
    for colour, update in zip(COLOURS, found.updates, strict=False):
        sizes = found.medians(update)[quantity].sizes
        finite = {layers: size for layers, size in sizes.items() if size is not None}
        label = f"after {update}"
        axes.plot([*finite], [*finite.values()], "o-", color=colour, label=label, markersize=3)
    finish_axes(axes, title=quantity, x="layers per stack", y="size", log="xy")
    _widen(axes)
    axes.set_xticks(found.depths, [str(layers) for layers in found.depths])
    axes.minorticks_off()


def _widen(axes: Axes) -> None:
    """Show a factor of ten at least, so that what is level looks level."""
    low, high = axes.get_ylim()
    if low > 0 and high < 10 * low:
        middle = (low * high) ** 0.5
        axes.set_ylim(middle / 10**0.5, middle * 10**0.5)
