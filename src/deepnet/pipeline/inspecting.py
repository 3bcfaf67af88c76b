"""What a recipe would do, without doing it: sizes, coefficients, initial weights, updates, one forward and backward."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepnet.data.loader import Batch
from deepnet.data.prepare import say_nothing
from deepnet.pipeline.budgeting import settle_memory
from deepnet.pipeline.devices import choose_device
from deepnet.pipeline.outlook import EndReport, UpdateReport, find_end, look_at_updates
from deepnet.pipeline.preparing import (
    CACHE,
    Report,
    build_model,
    make_loader,
    mixture_table,
    prepare_data,
    sized_model,
)
from deepnet.pipeline.recipe import Recipe
from deepnet.pipeline.settling import settle_clipping, settle_model
from deepnet.planning.machine import most_held_bytes
from deepnet.schemes.coefficients import coefficients
from deepnet.training.engine.precision import resolve_precision
from deepnet.training.engine.ranks import Ranks
from deepnet.training.engine.recompute import recomputing
from deepnet.training.loss import token_loss
from deepnet.transformer.counting import count_parameters
from deepnet.transformer.initialize import RoleReport, initialization_report
from deepnet.transformer.models import Transformer


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
    recipe = settle_model(recipe, vocab_size=size, report=report)
    ranks, say = Ranks(place), report or say_nothing
    recipe = settle_clipping(
        settle_memory(recipe, data, run=None, ranks=ranks, report=say), report=report
    )
    model = build_model(recipe, data.tokenizers)
    initialization = initialization_report(model)
    loader = make_loader(recipe, data)
    for line in mixture_table(loader.dataset):
        say(line)
    update, largest = look_at_updates(loader)
    return Inspection(
        parameters=count_parameters(model),
        coefficients=coefficients(
            recipe.residual_scheme(),
            **recipe.model.planned_layers,
            optimizer_family=model.optimizer_family,
            loops=recipe.model.loops,
        ),
        initialization=initialization,
        update=update,
        end=find_end(recipe, updates_per_epoch=update.per_epoch),
        step=_try_step(recipe, model, largest[0], place),
    )


def _try_step(recipe: Recipe, model: Transformer, batch: Batch, device: torch.device) -> StepReport:
    precision = resolve_precision(
        recipe.training.precision, device=device, width=recipe.model.d_model
    )
    compute = token_loss(label_smoothing=recipe.training.label_smoothing)
    blocks = [layer for stack in model.stacks() for layer in stack.layers]
    model.to(device).train()
    if recipe.training.step_in_backward:
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(_drop_gradient)  # type: ignore[no-untyped-call]
    started = time.monotonic()
    with recomputing(model, recipe.training, blocks=blocks):
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
        peak_bytes=most_held_bytes(device),
        device=str(device),
        precision=precision.name,
    )


def _drop_gradient(parameter: Tensor) -> None:
    parameter.grad = None
