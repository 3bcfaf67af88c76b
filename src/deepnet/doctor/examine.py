"""The doctor: before a run, whether its model will train, from a few hundred real updates."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deepnet.config import build
from deepnet.data.loader import Update, UpdateLoader
from deepnet.data.prepare import PreparedData
from deepnet.doctor.beside import against_theory, first_weights
from deepnet.doctor.diagnosis import Diagnosis, Evidence, diagnose
from deepnet.doctor.frequencies import frequency_loss
from deepnet.doctor.proxy import compressed, proxy_recipe, run_length
from deepnet.doctor.risk import Weights, shipped_weights
from deepnet.doctor.signs import read_signs
from deepnet.doctor.trial import Settings, take_steps
from deepnet.errors import AdaptError, ConfigError
from deepnet.pipeline.beginning import first_batches, preparation
from deepnet.pipeline.entry import LoopSettings, policies_of
from deepnet.pipeline.measuring import make_recorder, probe_batch
from deepnet.pipeline.outlook import find_end
from deepnet.pipeline.preparing import (
    CACHE,
    Report,
    build_model,
    make_loader,
    prepare_data,
    sized_model,
)
from deepnet.pipeline.recipe import Recipe
from deepnet.pipeline.settling import settle_model
from deepnet.planning.machine import memory_bytes
from deepnet.probes.listening import output_in
from deepnet.probes.recorder import Recorder
from deepnet.training.batches import Batch, ListedUpdate, ListedUpdates
from deepnet.training.config import optimizer_family
from deepnet.training.engine.precision import Precision
from deepnet.training.loss import token_loss
from deepnet.training.session import Loss
from deepnet.transformer.initialize import parameter_policies
from deepnet.transformer.models import Transformer

STEPS = 200
"""Updates of a trial."""
LEAST_STEPS = 20
"""Fewer would leave no tenths whose losses can be compared."""
TEXT = 10
"""Updates' worth of text that a trial repeats: short, so that a model that can learn is soon below the frequencies."""
SENTENCES = 8
"""Valid sentences that the probes look at."""
_CPU = torch.device("cpu")
_FLOAT32 = Precision("fp32", "cpu")


def examine_recipe(
    recipe: Recipe,
    *,
    steps: int = STEPS,
    cache: Path = CACHE,
    report: Report | None = None,
    weights: Weights | None = None,
) -> Diagnosis:
    """Return whether a recipe's run will train, from a proxy's updates on its own text, on the CPU in float32.

    Prepares the text, and writes nothing else. Raises DeepNetError where a run would refuse the recipe or its text.
    """
    refuse_too_few(steps)
    data = prepare_data(recipe, cache=cache, report=report)
    run = _updates_of(recipe, data)
    steps = max(min(steps, run), LEAST_STEPS)
    given = _settled(recipe, data, report)
    proxy = _settled(proxy_recipe(recipe, longest=data.dataset("train").header.longest), data, None)
    schedule = compressed(proxy.schedule, run=run, steps=steps, optimizer=proxy.optimizer)
    loader = make_loader(proxy, data)
    text = list(islice(loader.updates(0), TEXT))
    model, recorder = _prepared(proxy, data, loader)
    settings = Settings(
        optimizer=proxy.optimizer,
        schedule=schedule,
        clip_norm=proxy.training.clip_norm,
        policies=parameter_policies(model),
        after_update=partial(_follow, run / steps),
    )
    loss = token_loss(label_smoothing=proxy.training.label_smoothing)
    torch.manual_seed(proxy.training.seed)
    trial = take_steps(
        model, cycle(text), steps=steps, loss=loss, settings=settings, recorder=recorder
    )
    signs = read_signs(trial, frequency_loss=_frequency_loss(proxy, data, text))
    return diagnose(
        signs,
        weights=weights or shipped_weights(),
        beside=[*against_theory(trial.readings), *_first_weights(given, proxy, data)],
        trial=_described(proxy, schedule.warmup_steps, steps, run),
        optimizer=recipe.optimizer,
        schedule=recipe.schedule,
    )


def doctor(
    model: nn.Module,
    batches: Sequence[Batch],
    loss: Loss,
    *,
    settings: Mapping[str, Any] | None = None,
    count: Callable[[Any], int] | None = None,
    frequency_loss: float | None = None,
    steps: int = STEPS,
) -> Diagnosis:
    """Return whether a model of one's own will train, from updates of a copy of it; `model` stays as it is.

    `loss(model, batch)` is divided by `count(batch)`, by default 1, and `settings` are a recipe's sections training,
    optimizer and schedule, as in `train_model`. The batches are repeated, one an update. `frequency_loss` is the loss
    of who knows how often each token comes and nothing else, where there is such a thing. Nothing is made narrower, so
    that give a narrow model. What needs known residual sites is left out of a model that has none.
    Raises ConfigError for settings that contradict each other, or no batches.
    """
    refuse_too_few(steps)
    checked = build(LoopSettings, {"training": {"max_steps": steps}, **(settings or {})})
    if not batches:
        raise ConfigError("there are no batches; give at least one, of which each makes an update")
    own = deepcopy(model)
    listed = ListedUpdates([ListedUpdate((b,), count(b) if count else 1) for b in batches])
    run = run_length(
        checked.schedule,
        updates=checked.training.max_steps or checked.training.max_epochs * len(batches) or None,
    )
    schedule = compressed(checked.schedule, run=run, steps=steps, optimizer=checked.optimizer)
    if isinstance(own, Transformer) and (prepare := preparation(own, batches, loss=loss)):
        prepare(own)
    trial = take_steps(
        own,
        cycle(listed.updates(0)),
        steps=steps,
        loss=loss,
        settings=Settings(
            optimizer=checked.optimizer,
            schedule=schedule,
            clip_norm=checked.training.clip_norm,
            policies=policies_of(own, checked.optimizer),
            after_update=partial(_follow, run / steps) if isinstance(own, Transformer) else None,
        ),
        recorder=_recorder_of(own, batches[0], loss),
    )
    return diagnose(
        read_signs(trial, frequency_loss=frequency_loss),
        weights=shipped_weights(),
        beside=[],
        trial={"updates": steps, "of": run, "warmup_steps": schedule.warmup_steps},
        optimizer=checked.optimizer,
        schedule=checked.schedule,
    )


def refuse_too_few(steps: int) -> None:
    """Raise ConfigError for a trial that could show nothing."""
    if steps < LEAST_STEPS:
        raise ConfigError(
            f"a trial of {steps} updates shows nothing; expected at least {LEAST_STEPS}, as its tenths are compared"
        )


def _updates_of(recipe: Recipe, data: PreparedData) -> int:
    end = find_end(recipe, updates_per_epoch=make_loader(recipe, data).updates_per_epoch(0))
    return run_length(recipe.schedule, updates=end.updates)


def _settled(recipe: Recipe, data: PreparedData, report: Report | None) -> Recipe:
    size = sized_model(recipe.model, data.tokenizers).vocab_size
    return settle_model(recipe, vocab_size=size, report=report)


def _prepared(
    recipe: Recipe, data: PreparedData, loader: UpdateLoader
) -> tuple[Transformer, Recorder]:
    """Return the recipe's model as it is before its first update, and its probes."""
    model = build_model(recipe, data.tokenizers)
    loss = token_loss(label_smoothing=recipe.training.label_smoothing)
    if prepare := preparation(model, first_batches(loader, _CPU), loss=loss):
        prepare(model)
    batch = probe_batch(recipe, data, sentences=SENTENCES)
    return model, make_recorder(model, batch, precision=_FLOAT32)


def _first_weights(given: Recipe, proxy: Recipe, data: PreparedData) -> list[Evidence]:
    """Return what the given model is at its first weights, or its proxy where the memory would not hold it."""
    whose, recipe = "the model", given
    if not _is_held(given, data):
        whose, recipe = "its proxy", proxy
    model, recorder = _prepared(recipe, data, make_loader(recipe, data))
    batch = probe_batch(recipe, data, sentences=SENTENCES)
    loss = token_loss(label_smoothing=recipe.training.label_smoothing)
    return first_weights(
        model, recorder, lambda m: loss(m.eval(), batch) / batch.num_tokens, whose=whose
    )


def _is_held(recipe: Recipe, data: PreparedData) -> bool:
    """Return whether half of the machine's memory holds the weights, their gradients and as much again."""
    with torch.device("meta"):
        model = Transformer(
            sized_model(recipe.model, data.tokenizers),
            recipe.residual_scheme(),
            ends=recipe.ends,
            optimizer_family=optimizer_family(recipe.optimizer.name),
        )
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    return 3 * size <= memory_bytes(_CPU) / 2


def _follow(stretch: float, model: nn.Module, step: int) -> None:
    """Let a scheme do what it does after an update, at the time that it would be in the run itself."""
    assert isinstance(model, Transformer)
    model.scheme.after_update(model)
    model.scheme.advance(model, round(step * stretch))


def _frequency_loss(recipe: Recipe, data: PreparedData, text: Sequence[Update]) -> float:
    targets: list[Tensor] = [batch.target_out for update in text for batch in update.batches]
    size = sized_model(recipe.model, data.tokenizers).vocab_size
    smoothing = recipe.training.label_smoothing
    return frequency_loss(targets, num_ids=size - 1, label_smoothing=smoothing)


def _recorder_of(model: nn.Module, batch: Batch, loss: Loss) -> Recorder | None:
    """Return the probes of a model of one's own, None where its residual sites are not known."""
    try:
        return Recorder(model, lambda m: output_in(m, lambda: loss(m, batch)))
    except AdaptError:
        return None


def _described(proxy: Recipe, warmup: int, steps: int, run: int) -> dict[str, Any]:
    shape = proxy.model
    return {
        "updates": steps,
        "of": run,
        "warmup_steps": warmup,
        "d_model": shape.d_model,
        "encoder_layers": shape.encoder_layers,
        "decoder_layers": shape.decoder_layers,
        "max_tokens": proxy.batching.max_tokens,
        "optimizer": proxy.optimizer.name,
        "lr": proxy.optimizer.lr,
        "seed": proxy.training.seed,
    }
