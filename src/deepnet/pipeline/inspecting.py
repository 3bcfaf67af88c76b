"""What a recipe would do, without doing it: sizes, coefficients, initial weights, updates, one forward and backward."""

import resource
import sys
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from deepnet.data.loader import Batch, UpdateLoader
from deepnet.pipeline.devices import choose_device
from deepnet.pipeline.preparing import (
    CACHE,
    Report,
    build_model,
    make_loader,
    prepare_data,
    sized_model,
)
from deepnet.pipeline.recipe import Recipe
from deepnet.pipeline.settling import settle_ends
from deepnet.schemes.coefficients import coefficients
from deepnet.training.engine.precision import resolve_precision
from deepnet.training.engine.recompute import recomputed
from deepnet.training.loss import token_loss
from deepnet.training.optimization.schedules import resolve_end
from deepnet.transformer.counting import count_parameters
from deepnet.transformer.initialize import RoleReport, initialization_report
from deepnet.transformer.models import Transformer

_SEEN_UPDATES = 200
"""Updates of the first epoch that are looked at for the means and for the largest micro-batch."""
_MEANS = ("sentences", "source_tokens", "target_tokens")


@dataclass(frozen=True, kw_only=True)
class UpdateReport:
    """What updates hold, on average over the first ones of an epoch."""

    sentences: float
    source_tokens: float
    target_tokens: float
    per_epoch: int


@dataclass(frozen=True, kw_only=True)
class EndReport:
    """What ends the run, besides training.patience."""

    limits: dict[str, float]
    """The limits that are set, by key; the first that is reached ends the run."""
    updates: int | None
    """Updates until the nearest of max_steps and max_epochs; None where there is only max_minutes."""
    anneals: bool
    """Whether the learning rate falls towards that end."""


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """One forward and backward of one micro-batch, the largest of those looked at."""

    sentences: int
    source_length: int
    """Tokens of the longest source, eos included."""
    target_length: int
    """Tokens of the longest target, eos included."""
    loss: float
    """Smoothed loss in nats per target token; ln(vocabulary) is a model that knows nothing."""
    seconds: float
    peak_bytes: int
    """Most memory held: on a GPU by tensors, on a CPU by the whole process so far."""
    device: str
    precision: str


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What a dry run found."""

    parameters: dict[str, int]
    """Of each stack, of the embeddings, and in all."""
    coefficients: dict[str, Any]
    """Alpha and beta per stack, all scales and gains per site."""
    initialization: list[RoleReport]
    """Expected and measured standard deviation per stack and role."""
    update: UpdateReport
    end: EndReport
    step: StepReport

    def to_dict(self) -> dict[str, Any]:
        """Return everything for a JSON file."""
        return asdict(self)


def inspect_recipe(
    recipe: Recipe, *, device: str = "auto", cache: Path = CACHE, report: Report | None = None
) -> Inspection:
    """Prepare the data, build the model and compute one micro-batch; writes nothing but the preparation.

    Raises DeepNetError where a run would refuse the recipe or its text.
    """
    place = choose_device(device)
    data = prepare_data(recipe, cache=cache, report=report)
    size = sized_model(recipe.model, data.tokenizers).vocab_size
    recipe = settle_ends(recipe, vocab_size=size, report=report)
    model = build_model(recipe, data.tokenizers)
    initialization = initialization_report(model)
    update, largest = _look_at_updates(make_loader(recipe, data))
    return Inspection(
        parameters=count_parameters(model),
        coefficients=coefficients(
            recipe.residual_scheme(),
            encoder_layers=recipe.model.encoder_layers,
            decoder_layers=recipe.model.decoder_layers,
            optimizer_family=model.optimizer_family,
        ),
        initialization=initialization,
        update=update,
        end=_find_end(recipe, updates_per_epoch=update.per_epoch),
        step=_try_step(recipe, model, largest, place),
    )


def _look_at_updates(loader: UpdateLoader) -> tuple[UpdateReport, Batch]:
    """Return the means over the first updates of an epoch, and the largest of their micro-batches."""
    totals: Counter[str] = Counter()
    largest: Batch | None = None
    for update in islice(loader.updates(0), _SEEN_UPDATES):
        totals["updates"] += 1
        for batch in update.batches:
            totals["sentences"] += len(batch.source)
            totals["source_tokens"] += batch.num_source_tokens
            totals["target_tokens"] += batch.num_tokens
            if largest is None or _padded_tokens(batch) > _padded_tokens(largest):
                largest = batch
    assert largest is not None, "prepared data has at least one pair"
    means = {name: round(totals[name] / totals["updates"], 1) for name in _MEANS}
    return UpdateReport(**means, per_epoch=loader.updates_per_epoch(0)), largest


def _find_end(recipe: Recipe, *, updates_per_epoch: int) -> EndReport:
    training, schedule = recipe.training, recipe.schedule
    resolve_end(schedule, training, updates_per_epoch=updates_per_epoch)
    limits = {name: getattr(training, name) for name in ("max_steps", "max_epochs", "max_minutes")}
    counts = (training.max_steps, training.max_epochs * updates_per_epoch)
    return EndReport(
        limits={f"training.{name}": limit for name, limit in limits.items() if limit},
        updates=min((count for count in counts if count), default=None),
        anneals=schedule.name in ("linear", "cosine") and not schedule.decay_steps,
    )


def _padded_tokens(batch: Batch) -> int:
    return batch.source.numel() + batch.target_out.numel()


def _try_step(recipe: Recipe, model: Transformer, batch: Batch, device: torch.device) -> StepReport:
    precision = resolve_precision(
        recipe.training.precision, device=device, width=recipe.model.d_model
    )
    compute = token_loss(label_smoothing=recipe.training.label_smoothing)
    blocks = [layer for stack in model.stacks() for layer in stack.layers]
    model.to(device).train()
    started = time.monotonic()
    with recomputed(blocks) if recipe.training.recompute else nullcontext():
        with precision.autocast():
            loss = compute(model, batch.to(device))
        (loss / batch.num_tokens).backward()  # type: ignore[no-untyped-call]
    value = loss.item() / batch.num_tokens  # waits for the device
    return StepReport(
        sentences=len(batch.source),
        source_length=batch.source.shape[1],
        target_length=batch.target_out.shape[1],
        loss=value,
        seconds=time.monotonic() - started,
        peak_bytes=_peak_bytes(device),
        device=str(device),
        precision=precision.name,
    )


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
