"""What was done to a model: every module and weight touched, with the standard deviations before and after."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from deepnet.adapt.drawn import WeightChange
from deepnet.adapt.groups import Share, parameter_groups
from deepnet.adapt.install import Change
from deepnet.adapt.journal import Journal


@dataclass(frozen=True, kw_only=True)
class Report:
    """Every change that `apply_scheme` made; `undo()` takes them all back, as long as this report is kept.

    It holds a copy of each weight that was overwritten; dropping the report frees them.
    """

    family: str
    architecture: str
    scheme: dict[str, Any]
    modules: tuple[Change, ...]
    weights: tuple[WeightChange, ...]
    notes: tuple[str, ...]
    journal: Journal = field(repr=False)
    model: nn.Module = field(repr=False)

    def parameter_groups(
        self, *, lr: float, weight_decay: float = 0.0, only: Share = "all"
    ) -> list[dict[str, Any]]:
        """Return the groups that `deepnet.parameter_groups` makes of the model, for any torch optimiser."""
        return parameter_groups(self.model, lr=lr, weight_decay=weight_decay, only=only)

    def undo(self) -> None:
        """Put back all that was changed, modules and weights to the last bit; what training moved elsewhere stays."""
        self.journal.undo()

    def __str__(self) -> str:
        """Return the short form: weights pooled by stack and role, modules by what was done to them."""
        lines = [f"{self.scheme['name']} on {self.family} ({self.architecture})"]
        lines += _grid(["stack", "role", "matrices", "expected", "before", "after"], self._pools())
        lines += [f"{what}: {count} x" for what, count in _counts(c.what for c in self.modules)]
        return "\n".join([*lines, *self.notes])

    def table(self) -> str:
        """Return every weight and every module on a line of its own."""
        rows = [
            [
                w.where,
                w.role,
                str(tuple(w.shape)),
                _shown(w.expected),
                f"{w.before:.4g}",
                f"{w.after:.4g}",
            ]
            for w in self.weights
        ]
        lines = _grid(["weight", "role", "shape", "expected", "before", "after"], rows)
        lines += [f"{change.where}: {change.what}" for change in self.modules]
        return "\n".join([*lines, *self.notes])

    def _pools(self) -> list[list[str]]:
        pools: dict[tuple[str, str], list[WeightChange]] = {}
        for weight in self.weights:
            pools.setdefault((weight.stack, weight.role), []).append(weight)
        return [
            [
                stack,
                role,
                str(len(pool)),
                _shown(_pooled(pool, [w.expected for w in pool])),
                _shown(_pooled(pool, [w.before for w in pool])),
                _shown(_pooled(pool, [w.after for w in pool])),
            ]
            for (stack, role), pool in pools.items()
        ]


def _pooled(pool: list[WeightChange], values: list[float | None]) -> float | None:
    """Return the standard deviation over all matrices of a pool; None where one is not known."""
    sizes = [math.prod(weight.shape) for weight in pool]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    squares = sum(size * value**2 for size, value in zip(sizes, known, strict=True))
    return math.sqrt(squares / sum(sizes))


def _shown(value: float | None) -> str:
    return "kept" if value is None else f"{value:.4g}"


def _counts(texts: Iterable[str]) -> list[tuple[str, int]]:
    counts: dict[str, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    return list(counts.items())


def _grid(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    padded = [map(str.ljust, line, widths) for line in lines]
    return ["  ".join(cells).rstrip() for cells in padded]
