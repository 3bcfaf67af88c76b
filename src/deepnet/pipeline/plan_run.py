"""What a recipe's run takes on a machine, told before it is begun: memory, disk, time."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from deepnet.data.loader import Batch
from deepnet.data.prepare import PreparedData
from deepnet.data.tokenizer import Tokenizers
from deepnet.errors import ConfigError
from deepnet.pipeline.budgeting import Budgeted, conditions_of, within_budget
from deepnet.pipeline.devices import choose_device
from deepnet.pipeline.outlook import EndReport, UpdateReport, find_end, look_at_updates
from deepnet.pipeline.preparing import (
    CACHE,
    Report,
    build_model,
    make_loader,
    prepare_data,
    sized_model,
)
from deepnet.pipeline.recipe import Recipe
from deepnet.pipeline.settling import settle_clipping, settle_model
from deepnet.planning.costs import Costs
from deepnet.planning.machine import memory_bytes
from deepnet.planning.process import process_bytes
from deepnet.planning.rehearsal import Conditions
from deepnet.planning.timing import Depths, time_updates
from deepnet.training.engine.precision import reason_for_auto, resolve_precision


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What was found where the recipe leaves it open."""

    key: str
    asked: str = "auto"
    value: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class DiskPlan:
    """Bytes on disk."""

    checkpoint: int
    bundle: int
    num_checkpoints: int
    """The most that are there at once: the latest, the best, and one that is being written."""

    @property
    def most(self) -> int:
        """Return the bytes of all of it."""
        return self.num_checkpoints * self.checkpoint + self.bundle


@dataclass(frozen=True, kw_only=True)
class TimePlan:
    """How long a run takes, validations and saving left out."""

    update_seconds: float
    tokens_per_second: float
    """Target tokens, as a run shows them."""
    updates: int
    """Until the first of the limits is reached."""
    seconds: float
    """The same as time."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What a run takes."""

    device: str
    device_bytes: int
    """Memory of the machine or card."""
    precision: str
    choices: Sequence[Choice]
    update: UpdateReport
    end: EndReport
    largest: Mapping[str, int]
    """Sentences, and the longest source and target, of the micro-batch that was rehearsed."""
    costs: Costs
    disk: DiskPlan
    time: TimePlan | None
    """None where the run was not timed."""
    untimed: str = ""
    """Why it was not timed."""

    @property
    def fits(self) -> bool:
        """Return whether training would not refuse it: the memory there is may hold what is needed."""
        return not self.costs.memory.exceeds(self.device_bytes)

    @property
    def is_tight(self) -> bool:
        """Return whether it fits, and the plan's peak does not."""
        return self.fits and self.costs.memory.peak > self.device_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return everything for a JSON file."""
        found = asdict(self)
        memory = self.costs.memory
        found["costs"]["memory"] |= {"peak": memory.peak, "needed": memory.needed}
        found["disk"]["most"] = self.disk.most
        return {**found.pop("costs"), **found, "fits": self.fits, "is_tight": self.is_tight}


def plan_run(
    recipe: Recipe, *, device: str = "auto", cache: Path = CACHE, report: Report | None = None
) -> RunPlan:
    """Prepare the data, tell what a run of the recipe takes, and time a few layers; writes but the preparation.

    For one process. Raises DeepNetError where a run would refuse the recipe or its text, PlanError where its model
    cannot be planned.
    """
    place = choose_device(device)
    data = prepare_data(recipe, cache=cache, report=report)
    size = sized_model(recipe.model, data.tokenizers).vocab_size
    recipe = settle_model(recipe, vocab_size=size, report=report)
    update, largest = look_at_updates(make_loader(recipe, data))
    end = find_end(recipe, updates_per_epoch=update.per_epoch)
    process = process_bytes(conditions_of(recipe, place))
    found = within_budget(recipe, data.tokenizers, largest, device=place, process=process)
    recipe, costs = settle_clipping(found.recipe, report=report), found.costs
    conditions = conditions_of(recipe, place)
    there = memory_bytes(place)
    time, untimed = None, "it does not fit"
    if not costs.memory.exceeds(there):
        time, untimed = _time_if_possible(recipe, data, update, end, largest[0], conditions)
    return RunPlan(
        device=str(place),
        device_bytes=there,
        precision=conditions.precision.name,
        choices=_choices(found, asked=device, device=place),
        update=update,
        end=end,
        largest=_describe(largest[0]),
        costs=costs,
        disk=_disk(recipe, costs, data.tokenizers),
        time=time,
        untimed=untimed,
    )


def _choices(budgeted: Budgeted, *, asked: str, device: torch.device) -> list[Choice]:
    recipe, found = budgeted.recipe, []
    if asked == "auto":
        there = "torch finds a GPU" if device.type == "cuda" else "torch finds no GPU"
        found.append(Choice(key="--device", value=str(device), reason=there))
    if recipe.training.precision == "auto":
        width = recipe.model.d_model
        precision = resolve_precision("auto", device=device, width=width)
        reason = reason_for_auto(device=device, width=width)
        found.append(Choice(key="training.precision", value=precision.name, reason=reason))
    if budget := recipe.memory.budget:
        chosen, reason = budgeted.chosen, budgeted.reason
        found.append(Choice(key="memory.budget", asked=budget, value=chosen, reason=reason))
    return found


def _describe(batch: Batch) -> dict[str, int]:
    return {
        "sentences": len(batch.source),
        "source_length": batch.source.shape[1],
        "target_length": batch.target_out.shape[1],
    }


def _disk(recipe: Recipe, costs: Costs, tokenizers: Tokenizers) -> DiskPlan:
    sides = {side.fingerprint: len(side.model) for side in (tokenizers.source, tokenizers.target)}
    return DiskPlan(
        checkpoint=sum(costs.checkpoint.values()),
        bundle=costs.checkpoint["model.safetensors"] + sum(sides.values()),
        num_checkpoints=recipe.training.keep_last + 2,
    )


def _time_if_possible(recipe: Recipe, *known: Any) -> tuple[TimePlan | None, str]:
    """Return how long the run takes, or why that cannot be told: a few of its layers may be no model of its scheme."""
    try:
        return _time(recipe, *known), ""
    except ConfigError as error:
        return None, f"its scheme has no model of a few layers ({error})"


def _time(
    recipe: Recipe,
    data: PreparedData,
    update: UpdateReport,
    end: EndReport,
    batch: Batch,
    conditions: Conditions,
) -> TimePlan:
    depths = Depths(recipe.model.encoder_layers, recipe.model.decoder_layers)
    seconds = time_updates(
        lambda one: build_model(_of_depths(recipe, one), data.tokenizers),
        depths,
        batch,
        conditions=conditions,
    )
    size = update.padded_tokens / batch.num_padded_tokens
    each = size * seconds.passes + seconds.step
    limit = recipe.training.max_minutes * 60
    in_time = int(limit / each) if limit else None
    updates = min(n for n in (end.updates, in_time) if n is not None)
    return TimePlan(
        update_seconds=each,
        tokens_per_second=update.target_tokens / each,
        updates=updates,
        seconds=updates * each,
    )


def _of_depths(recipe: Recipe, depths: Depths) -> Recipe:
    layers = {"encoder_layers": depths.encoder, "decoder_layers": depths.decoder}
    return recipe.model_copy(update={"model": recipe.model.model_copy(update=layers)})
