"""A run that its machine cannot hold is refused before it begins, with what it takes and what would help."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from deepnet.data.loader import Batch
from deepnet.data.prepare import PreparedData
from deepnet.errors import ConfigError, PlanError
from deepnet.pipeline.outlook import look_at_updates
from deepnet.pipeline.plan_run import conditions_of, costs_of
from deepnet.pipeline.preparing import Report, make_loader
from deepnet.pipeline.recipe import Recipe
from deepnet.planning.machine import memory_bytes
from deepnet.planning.memory import MemoryPlan

ERROR = 0.1
"""How far a planned peak may be off, over itself: docs/plan.md has the measurements."""
_GIB = 2**30


def refuse_what_cannot_fit(
    recipe: Recipe, data: PreparedData, *, device: torch.device, report: Report
) -> None:
    """Raise ConfigError where one process on `device` cannot hold the recipe's run; say so where that is close.

    A model that cannot be planned is not refused.
    """
    _, largest = look_at_updates(make_loader(recipe, data))
    wanted = _Case("", recipe, largest)
    try:
        memory = _memory(wanted, data, device)
    except PlanError as error:
        report(f"whether the run fits is not known: {error}")
        return
    there = memory_bytes(device)
    if memory.peak * (1 - ERROR) > there:
        raise ConfigError(
            _refusal(memory, there, device, _what_helps(wanted, data, device, memory))
        )
    if memory.peak * (1 + ERROR) > there:
        report(
            f"memory is tight: the plan is {memory.peak / _GIB:.1f} GiB of the {there / _GIB:.1f} that {device} has"
        )


class _Case(NamedTuple):
    """A recipe with its largest micro-batches, and what of it is changed."""

    changed: str
    recipe: Recipe
    largest: Sequence[Batch]


def _memory(case: _Case, data: PreparedData, device: torch.device) -> MemoryPlan:
    conditions = conditions_of(case.recipe, device)
    return costs_of(case.recipe, data.tokenizers, case.largest, conditions=conditions).memory


def _refusal(memory: MemoryPlan, there: int, device: torch.device, helps: list[str]) -> str:
    parts = ", ".join(
        f"{name} {getattr(memory, name) / _GIB:.2g}"
        for name in ("weights", "gradients", "optimizer", "average", "activations")
        if getattr(memory, name)
    )
    helped = "; ".join(helps) or "take a smaller model"
    return (
        f"this run needs about {memory.peak / _GIB:.1f} GiB ({parts}), and {device} has {there / _GIB:.1f}: it cannot "
        f"fit. What would help, with the memory it then needs: {helped}. `deepnet plan` shows all of it"
    )


def _what_helps(
    wanted: _Case, data: PreparedData, device: torch.device, memory: MemoryPlan
) -> list[str]:
    """Return each change that lowers the peak, with the peak it leads to, the lowest first."""
    found = [(_memory(case, data, device).peak, case.changed) for case in _changes(wanted, device)]
    lower = sorted(one for one in found if one[0] < memory.peak)
    return [f"{changed} ({peak / _GIB:.1f} GiB)" for peak, changed in lower]


def _changes(wanted: _Case, device: torch.device) -> Iterator[_Case]:
    recipe = wanted.recipe
    changes = []
    if not recipe.training.recompute:
        changes.append(_recomputing)
    if recipe.data.max_sentence_tokens <= recipe.batching.max_tokens // 2:
        changes.append(_halved)
    if conditions_of(recipe, device).precision.name == "fp32":
        changes.append(_in_bf16)
    yield from (change(wanted) for change in changes)
    if len(changes) > 1:
        together = wanted
        for change in changes:
            together = change(together)
        yield together


def _with_training(case: _Case, said: str, **changed: object) -> _Case:
    training = case.recipe.training.model_copy(update=changed)
    return _Case(
        _joined(case.changed, said),
        case.recipe.model_copy(update={"training": training}),
        case.largest,
    )


def _recomputing(case: _Case) -> _Case:
    return _with_training(case, "training.recompute = true", recompute=True)


def _in_bf16(case: _Case) -> _Case:
    return _with_training(case, "training.precision = 'bf16'", precision="bf16")


def _halved(case: _Case) -> _Case:
    """Return micro-batches of half the tokens, twice as many of them to an update."""
    batching = case.recipe.batching
    sizes = {
        "max_tokens": batching.max_tokens // 2,
        "micro_batches_per_update": batching.micro_batches_per_update * 2,
    }
    said = " and ".join(f"batching.{key} = {value}" for key, value in sizes.items())
    recipe = case.recipe.model_copy(update={"batching": batching.model_copy(update=sizes)})
    return _Case(_joined(case.changed, said), recipe, [_half(one) for one in case.largest])


def _half(batch: Batch) -> Batch:
    rows = max(len(batch.source) // 2, 1)
    halves = {name: x[:rows] for name, x in vars(batch).items() if isinstance(x, Tensor)}
    return replace(batch, **halves)  # type: ignore[arg-type]


def _joined(*said: str) -> str:
    return " with ".join(one for one in said if one)
