"""Finished cells side by side: a number per seed, and ratios at the same seed."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from deepnet.experiments.base import FinishedCell

Read = Callable[[FinishedCell], float]


def by_seed(
    cells: Iterable[FinishedCell], read: Read, *, line: str, layers: int
) -> dict[int, float]:
    """Return what `read` finds in the cells of a line at a depth, by seed."""
    return {
        one.cell.seed: read(one)
        for one in cells
        if (one.cell.line, one.cell.layers) == (line, layers)
    }


def over_seeds(cells: Iterable[FinishedCell], read: Read, *, line: str, layers: int) -> list[float]:
    """Return the same without the seeds."""
    return [*by_seed(cells, read, line=line, layers=layers).values()]


def ratios(of: Mapping[int, float], to: Mapping[int, float]) -> tuple[float, ...]:
    """Return the ratios at the same seed, of the seeds that both have."""
    return tuple(of[seed] / to[seed] if to[seed] else float("nan") for seed in of if seed in to)


def growth(
    cells: Sequence[FinishedCell], read: Read, *, line: str, depths: Sequence[int]
) -> tuple[float, ...]:
    """Return, for each seed that has every depth, the largest over the smallest number of a line."""
    found = [by_seed(cells, read, line=line, layers=layers) for layers in depths]
    shared = set.intersection(*(set(one) for one in found)) if found else set()
    rows = [[one[seed] for one in found] for seed in sorted(shared)]
    return tuple(_largest_over_smallest(row) for row in rows)


def _largest_over_smallest(row: Sequence[float]) -> float:
    """Return nan where a number is missing or not positive."""
    return max(row) / min(row) if all(value > 0 for value in row) else float("nan")
