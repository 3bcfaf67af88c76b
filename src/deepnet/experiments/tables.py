"""Numbers of finished cells as Markdown."""

import math
import statistics
from collections.abc import Iterable, Sequence

from deepnet.experiments.base import FinishedCell
from deepnet.experiments.comparison import Read, over_seeds


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float) -> str:
    """Return a number with three significant digits, plain where that is short."""
    if value == 0.0 or not math.isfinite(value):
        return str(value)
    return f"{value:.3g}" if 1e-3 <= abs(value) < 1e4 else f"{value:.2e}"


def spread(values: Sequence[float]) -> str:
    """Return "median [lowest, highest]" of what is finite, "-" where nothing is."""
    finite = sorted(value for value in values if math.isfinite(value))
    if not finite:
        return "-"
    middle = number(statistics.median(finite))
    return f"{middle} [{number(finite[0])}, {number(finite[-1])}]" if len(finite) > 1 else middle


def line_rows(
    cells: Sequence[FinishedCell], reads: Sequence[Read], *, lines: Iterable[str], layers: int
) -> list[list[str]]:
    """Return a row per line of the picture: the spread over the seeds of what each of `reads` finds at a depth."""
    return [
        [line, *(spread(over_seeds(cells, read, line=line, layers=layers)) for read in reads)]
        for line in lines
    ]
