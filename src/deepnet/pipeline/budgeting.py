"""A run within a budget of memory: the fastest way to train whose planned peak the budget holds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from deepnet.data.loader import Batch
from deepnet.data.prepare import PreparedData
from deepnet.data.tokenizer import Tokenizers
from deepnet.errors import ConfigError
from deepnet.pipeline.outlook import look_at_updates
from deepnet.pipeline.preparing import Report, build_model, make_loader
from deepnet.pipeline.recipe import Recipe
from deepnet.planning.budget import CHOSEN, describe_way, list_ways
from deepnet.planning.costs import Costs, find_costs
from deepnet.planning.process import process_bytes
from deepnet.planning.rehearsal import Conditions
from deepnet.planning.wording import in_bytes
from deepnet.record import RunFolder
from deepnet.training.config import TrainingConfig
from deepnet.training.engine.in_backward import whole_gradients_needed
from deepnet.training.engine.precision import resolve_precision
from deepnet.training.engine.ranks import Ranks


@dataclass(frozen=True, kw_only=True)
class Budgeted:
    """A recipe as it trains within its budget."""

    recipe: Recipe
    costs: Costs
    chosen: str
    """What was changed of the recipe."""
    reason: str
    """What it takes, and what the faster ways would have."""


def conditions_of(recipe: Recipe, device: torch.device) -> Conditions:
    """Return under what a recipe's model trains on a device; raises ConfigError where the device cannot."""
    precision = resolve_precision(
        recipe.training.precision, device=device, width=recipe.model.d_model
    )
    return Conditions(
        training=recipe.training,
        optimizer=recipe.optimizer,
        precision=precision,
        device=device,
        accumulates=recipe.batching.micro_batches_per_update > 1,
    )


def costs_of(
    recipe: Recipe,
    tokenizers: Tokenizers,
    largest: Sequence[Batch],
    *,
    conditions: Conditions,
    process: int,
) -> Costs:
    """Return the costs of a recipe's model on its largest micro-batches, in a process that held so many bytes."""
    build = partial(build_model, recipe, tokenizers)
    return find_costs(build, largest, conditions=conditions, process=process)


def within_budget(
    recipe: Recipe,
    tokenizers: Tokenizers,
    largest: Sequence[Batch],
    *,
    device: torch.device,
    process: int,
) -> Budgeted:
    """Return the recipe with the fastest way to train whose planned peak is within memory.budget, if there is one.

    Without a budget it is as it was. Raises ConfigError, with the peak of each way, where none is; PlanError where the
    model cannot be planned.
    """
    budget, peaks = recipe.memory.num_bytes or math.inf, list[str]()
    forbidding = _whole_gradients_needed(recipe)
    for way in _ways(recipe, steps_in_backward=not forbidding):
        tried = recipe.model_copy(update={"training": way})
        conditions = conditions_of(tried, device)
        costs = costs_of(tried, tokenizers, largest, conditions=conditions, process=process)
        said = describe_way(way, recipe.training)
        if costs.memory.peak <= budget:
            reason = f"a planned peak of {in_bytes(costs.memory.peak)}"
            faster = f", where {'; '.join(peaks)}" if peaks else ""
            return Budgeted(recipe=tried, costs=costs, chosen=said, reason=reason + faster)
        peaks.append(f"{said} takes {in_bytes(costs.memory.peak)}")
    left_out = (
        f". training.step_in_backward was not tried, because of {forbidding[0]}"
        if forbidding
        else ""
    )
    raise ConfigError(
        f"memory.budget = '{recipe.memory.budget}' ({in_bytes(budget)}) holds no way to train this: "
        f"{'; '.join(peaks)}{left_out}. Raise the budget, lower batching.max_tokens, or take a smaller model; "
        "`deepnet plan` without memory.budget shows what the memory is of"
    )


def settle_memory(
    recipe: Recipe,
    data: PreparedData,
    *,
    run: RunFolder | None,
    ranks: Ranks,
    report: Report,
) -> Recipe:
    """Return the recipe in the way to train that its budget allows: that of its `run`, where it had the same budget.

    Raises ConfigError where the budget allows none, or there are several processes, for which nothing is planned.
    """
    if not recipe.memory.budget:
        return recipe
    if ranks.world_size > 1 or recipe.training.engine == "sharded":
        raise ConfigError(
            "memory.budget is for one process that holds the whole model, as plans are; leave it out, and choose "
            "training.recompute yourself"
        )
    if run and (way := _way_so_far(recipe, run)):
        return recipe.model_copy(update={"training": way})
    report(f"planning the memory of this run for memory.budget = {recipe.memory.budget}")
    _, largest = look_at_updates(make_loader(recipe, data))
    process = process_bytes(conditions_of(recipe, ranks.device))
    found = within_budget(recipe, data.tokenizers, largest, device=ranks.device, process=process)
    report(f"memory.budget = {recipe.memory.budget} is {found.chosen}: {found.reason}")
    return found.recipe


def _way_so_far(recipe: Recipe, run: RunFolder) -> TrainingConfig | None:
    """Return the way in which a run has trained, where its budget was the same and nothing more is asked for now."""
    recorded = run.read_recipe()["recipe"]
    if recorded.get("memory", {}).get("budget") != recipe.memory.budget:
        return None
    chosen = {key: recorded["training"][key] for key in CHOSEN}
    way = recipe.training.model_copy(update=chosen)
    return way if way in _ways(recipe, steps_in_backward=True) else None


def _ways(recipe: Recipe, *, steps_in_backward: bool) -> list[TrainingConfig]:
    depth = max(recipe.model.running_layers.values())
    return list_ways(recipe.training, depth=depth, steps_in_backward=steps_in_backward)


def _whole_gradients_needed(recipe: Recipe) -> list[str]:
    return whole_gradients_needed(
        recipe.training,
        recipe.optimizer,
        recipe.guard,
        has_probes=recipe.probes.every > 0,
        micro_batches=recipe.batching.micro_batches_per_update,
    )
