"""Weights of a foreign model drawn by role, biases zeroed, norms set to one."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from deepnet.adapt.fit import PlannedStack
from deepnet.adapt.install import Installed
from deepnet.adapt.journal import Journal
from deepnet.anatomy.base import Weight
from deepnet.errors import AdaptError
from deepnet.schemes.base import Init, Role, StackName
from deepnet.transformer.grouped_query import full_draw
from deepnet.transformer.initialize import draw


@dataclass(frozen=True, kw_only=True)
class WeightChange:
    """A matrix that was drawn or rescaled: its standard deviation before and after, and what was aimed at."""

    where: str
    stack: StackName
    layer: int
    """0 where it is an embedding or the vocabulary projection."""
    role: Role
    shape: tuple[int, ...]
    before: float
    after: float
    expected: float | None
    """None where a trained weight was rescaled."""


def draw_weights(
    planned: PlannedStack, installed: list[Installed], paths: dict[nn.Module, str], journal: Journal
) -> list[WeightChange]:
    """Draw every weight of the stack's sites as the plan says and zero their biases."""
    return [
        _draw(one, weight, plan.init[weight.role], paths, journal)
        for one, (_, plan) in zip(installed, planned.plan.sites, strict=True)
        for weight in one.found.part.weights
    ]


def _draw(
    one: Installed, weight: Weight, init: Init, paths: dict[nn.Module, str], journal: Journal
) -> WeightChange:
    matrix, bias, before = weight.matrix(), weight.bias(), spread(weight.matrix())
    journal.keep(weight.parameter)
    queries = [w.matrix() for w in one.found.part.weights if w.role == "q"]
    rows = len(queries[0]) if queries else None
    target = full_draw(init, weight.role, matrix, rows=rows)
    draw(matrix, target)
    with torch.no_grad():
        matrix.mul_(weight.factor)
    if bias is not None and weight.bias_parameter is not None:
        journal.keep(weight.bias_parameter)
        bias.zero_()
    fan_out, fan_in = matrix.shape
    return changed(one, weight, paths, before, target.std(fan_in, fan_out) * weight.factor)


def changed(
    one: Installed,
    weight: Weight,
    paths: dict[nn.Module, str],
    before: float,
    expected: float | None,
) -> WeightChange:
    """Return the report's line of a weight that has been changed."""
    rows = "" if weight.rows is None else f"[{weight.rows[0]}:{weight.rows[1]}]"
    return WeightChange(
        where=f"{paths[weight.owner]}.{weight.name}{rows}",
        stack=one.residual.site.stack,
        layer=one.residual.site.layer,
        role=weight.role,
        shape=tuple(weight.matrix().shape),
        before=before,
        after=spread(weight.matrix()),
        expected=expected,
    )


def spread(matrix: Tensor) -> float:
    """Return the standard deviation of a matrix, in float64."""
    return float(matrix.double().std(correction=0))


# Is the model trained? ----------------------------------------------------------------------------------------------


def check_untrained(norms: list[nn.Module]) -> None:
    """Raise AdaptError unless every norm is exactly at its start (gain 1, bias 0), which no training leaves it at."""
    tables = [table for norm in norms for table in norm.named_parameters(recurse=False)]
    moved = not tables or any(
        not bool((table == (0.0 if name == "bias" else 1.0)).all()) for name, table in tables
    )
    if moved:
        raise AdaptError(
            "these weights are trained, or cannot be told from trained ones: their norms are not exactly at 1 and 0. "
            "initialize=True draws them anew and loses what they learned; initialize=False keeps the function, where "
            "the scheme has an exact form of it"
        )
