"""A run that its machine cannot hold is refused before it begins, with what it takes and what would help."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from deepnet.data.loader import Batch
from deepnet.data.prepare import PreparedData
from deepnet.data.tokenizer import Tokenizers
from deepnet.errors import ConfigError, PlanError
from deepnet.pipeline.budgeting import conditions_of, costs_of
from deepnet.pipeline.outlook import look_at_updates
from deepnet.pipeline.preparing import Report, make_loader
from deepnet.pipeline.recipe import Recipe
from deepnet.planning.machine import memory_bytes
from deepnet.planning.memory import MemoryPlan
from deepnet.planning.process import process_bytes
from deepnet.planning.wording import in_bytes

_STACKS = ("encoder_layers", "decoder_layers")


def refuse_what_cannot_fit(
    recipe: Recipe, data: PreparedData, *, device: torch.device, report: Report
) -> None:
    """Raise ConfigError where one process on `device` cannot hold the recipe's run; say so where that is close.

    A model that cannot be planned is not refused, and one that is far from full is not planned whole. On a card, where
    plans have not been held against runs, nothing is refused.
    """
    _, largest = look_at_updates(make_loader(recipe, data))
    wanted, there = _Case("", recipe, largest), memory_bytes(device)
    try:
        process = process_bytes(conditions_of(recipe, device))
        plan = partial(_memory, tokenizers=data.tokenizers, device=device, process=process)
        if _is_far_from_full(wanted, plan, there):
            return
        report("planning the memory of this run, as it may not fit")
        memory = plan(wanted)
        if memory.exceeds(there) and device.type == "cpu":
            helps = _what_helps(memory, _needed_after_changes(wanted, plan, device))
            raise ConfigError(_refusal(memory, there, device, helps))
    except PlanError as error:
        report(f"whether the run fits is not known: {error}")
        return
    if memory.peak > there:
        report(
            f"memory is tight: the plan is {in_bytes(memory.peak)} of the {in_bytes(there)} that {device} has"
        )


class _Case(NamedTuple):
    """A recipe with its largest micro-batches, and what of it is changed."""

    changed: str
    recipe: Recipe
    largest: Sequence[Batch]


_Plan = Callable[[_Case], MemoryPlan]


def _memory(
    case: _Case, *, tokenizers: Tokenizers, device: torch.device, process: int
) -> MemoryPlan:
    conditions = conditions_of(case.recipe, device)
    return costs_of(
        case.recipe, tokenizers, case.largest, conditions=conditions, process=process
    ).memory


def _is_far_from_full(wanted: _Case, plan: _Plan, there: int) -> bool:
    """Return whether half of the memory would do, by a few layers; not where the scheme has no such depth."""
    try:
        return _extrapolated(wanted, lambda case: plan(case).peak) < there / 2
    except PlanError:
        return False


def _needed_after_changes(wanted: _Case, plan: _Plan, device: torch.device) -> dict[str, int]:
    """Return what is needed after each change that may lower it, by a few layers; nothing where a few are no model."""
    try:
        return {
            case.changed: _extrapolated(case, lambda one: plan(one).needed)
            for case in _changes(wanted, device)
        }
    except PlanError:
        return {}


def _extrapolated(case: _Case, measure: Callable[[_Case], int]) -> int:
    """Return a measure of a case by that of two layers a stack and of two more in each, which all others add by pairs.

    By pairs, as a scheme may have something in every second layer alone.
    """
    depths: dict[str, int] = {
        name: depth for name in _STACKS if (depth := getattr(case.recipe.model, name))
    }
    shallow = {name: min(depth, 2) for name, depth in depths.items()}
    least = measure(_of_layers(case, shallow))
    return least + sum(
        (depth - 2) * (measure(_of_layers(case, {**shallow, name: 4})) - least) // 2
        for name, depth in depths.items()
        if depth > 2
    )


def _of_layers(case: _Case, layers: Mapping[str, int]) -> _Case:
    """Return a case with other numbers of layers."""
    model = case.recipe.model.model_copy(update=layers)
    return case._replace(recipe=case.recipe.model_copy(update={"model": model}))


def _refusal(memory: MemoryPlan, there: int, device: torch.device, helps: str) -> str:
    parts = ", ".join(f"{kind} {in_bytes(size)}" for kind, size in memory.kinds().items() if size)
    return (
        f"this run needs about {in_bytes(memory.needed)} ({parts}), and {device} has {in_bytes(there)}: it cannot fit. "
        f"What would help, with the memory it then needs: {helps}. `deepnet plan` shows all of it"
    )


def _what_helps(memory: MemoryPlan, changed: Mapping[str, int]) -> str:
    """Return the changes that lower what is needed, with what that then is, the lowest first."""
    lower = sorted((needed, said) for said, needed in changed.items() if needed < memory.needed)
    return "; ".join(f"{said} ({in_bytes(needed)})" for needed, said in lower) or "a smaller model"


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
