"""Finished cells with numbers of one's own."""

from collections.abc import Iterable, Mapping
from typing import Any

from deepnet.experiments.base import Experiment, FinishedCell


def made_cells(
    experiment: Experiment, readings: Mapping[tuple[str, int], Iterable[Mapping[str, Any]]]
) -> list[FinishedCell]:
    """Return every cell of a grid with the readings of its line and depth; a hundredth more with each seed."""
    return [
        FinishedCell(
            cell, [_scaled(one, 1 + cell.seed / 100) for one in readings[cell.line, cell.layers]]
        )
        for cell in experiment.cells()
        if (cell.line, cell.layers) in readings
    ]


def _scaled(reading: Any, factor: float) -> Any:
    if isinstance(reading, Mapping):
        return {k: v if k == "step" else _scaled(v, factor) for k, v in reading.items()}
    if isinstance(reading, list):
        return [_scaled(one, factor) for one in reading]
    return None if reading is None else reading * factor
