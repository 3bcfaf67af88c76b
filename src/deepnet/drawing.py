"""Pictures as PNG: colours that are told apart without colour vision, and how a figure is written."""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from deepnet.atomic import atomic_write

COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7"),
    *("#56B4E9", "#E69F00", "#000000"),
)


def save_picture(figure: Figure, path: Path, *, dpi: int = 130) -> None:
    """Write a figure as PNG, whole or not at all."""
    FigureCanvasAgg(figure)
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=dpi)
