"""Whether a recipe's run will train: a proxy of its model trains for a few hundred updates on its own text."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepnet.data.loader import Update, UpdateLoader
from deepnet.data.prepare import PreparedData
from deepnet.doctor.beside import against_theory, first_weights
from deepnet.doctor.diagnosis import Diagnosis, Evidence, diagnose
from deepnet.doctor.frequencies import frequency_loss
from deepnet.doctor.proxy import compressed, follow_in_time, proxy_recipe, run_length
from deepnet.doctor.risk import shipped_weights
from deepnet.doctor.signs import read_signs
from deepnet.doctor.trial import LEAST_STEPS, STEPS, Settings, Trial, refuse_too_few, take_steps
from deepnet.pipeline.beginning import first_batches, preparation
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
from deepnet.pipeline.settling import settle_clipping, settle_model
from deepnet.planning.machine import memory_bytes
from deepnet.probes.recorder import Recorder
from deepnet.training.config import ScheduleConfig
from deepnet.training.engine.precision import Precision
from deepnet.training.loss import token_loss
from deepnet.transformer.initialize import parameter_policies
from deepnet.transformer.models import Transformer

TEXT = 10
"""Updates' worth of text that a trial repeats: short, so that a model that can learn is soon below the frequencies."""
SENTENCES = 8
"""Valid sentences that the probes look at."""
_CPU = torch.device("cpu")
_FLOAT32 = Precision("fp32", "cpu")


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A proxy on the text of its recipe, before its trial."""

    recipe: Recipe
    data: PreparedData
    schedule: ScheduleConfig
    """Pressed into the trial."""
    steps: int
    run: int
    """Updates of the run that the trial stands for."""
    text: Sequence[Update]

    @property
    def smoothing(self) -> float:
        """Return the label smoothing of training."""
        return self.recipe.training.label_smoothing


def examine_recipe(
    recipe: Recipe, *, steps: int = STEPS, cache: Path = CACHE, report: Report | None = None
) -> Diagnosis:
    """Return whether a recipe's run will train, from a proxy's updates on its own text, on the CPU in float32.

    Prepares the text, and writes nothing else. Raises DeepNetError where a run would refuse the recipe or its text.
    """
    refuse_too_few(steps)
    data = prepare_data(recipe, cache=cache, report=report)
    given = _settled(recipe, data, report)
    case = _case(recipe, data, steps)
    trial = _try_out(case)
    return diagnose(
        read_signs(trial, frequency_loss=_frequency_loss(case)),
        weights=shipped_weights(),
        beside=[*against_theory(trial.readings), *_first_weights(given, case)],
        trial=_described(case),
        optimizer=recipe.optimizer,
        schedule=recipe.schedule,
    )


def _case(recipe: Recipe, data: PreparedData, steps: int) -> _Case:
    end = find_end(recipe, updates_per_epoch=make_loader(recipe, data).updates_per_epoch(0))
    run = run_length(recipe.schedule, updates=end.updates)
    steps = max(min(steps, run), LEAST_STEPS)
    longest = data.dataset("train").header.longest
    proxy = _settled(proxy_recipe(recipe, longest=longest), data, None)
    return _Case(
        recipe=proxy,
        data=data,
        schedule=compressed(proxy.schedule, run=run, steps=steps, optimizer=proxy.optimizer),
        steps=steps,
        run=run,
        text=list(islice(make_loader(proxy, data).updates(0), TEXT)),
    )


def _settled(recipe: Recipe, data: PreparedData, report: Report | None) -> Recipe:
    size = sized_model(recipe.model, data.tokenizers).vocab_size
    recipe = settle_model(recipe, vocab_size=size, report=report)
    return settle_clipping(recipe, report=report)


def _try_out(case: _Case) -> Trial:
    recipe = case.recipe
    model, recorder = _prepared(recipe, case.data, make_loader(recipe, case.data))
    settings = Settings(
        optimizer=recipe.optimizer,
        schedule=case.schedule,
        clip_norm=recipe.training.clip_norm,
        policies=parameter_policies(model),
        after_update=partial(follow_in_time, case.run / case.steps),
    )
    loss = token_loss(label_smoothing=case.smoothing)
    torch.manual_seed(recipe.training.seed)
    return take_steps(
        model, cycle(case.text), steps=case.steps, loss=loss, settings=settings, recorder=recorder
    )


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


def _first_weights(given: Recipe, case: _Case) -> list[Evidence]:
    """Return what the given model is at its first weights, or its proxy where the memory would not hold it."""
    whose, recipe = "the model", given
    if not _is_held(given, case.data):
        whose, recipe = "its proxy", case.recipe
    model, recorder = _prepared(recipe, case.data, make_loader(recipe, case.data))
    batch = probe_batch(recipe, case.data, sentences=SENTENCES)
    loss = token_loss(label_smoothing=case.smoothing)
    model.eval()
    return first_weights(model, recorder, lambda m: loss(m, batch) / batch.num_tokens, whose=whose)


def _is_held(recipe: Recipe, data: PreparedData) -> bool:
    """Return whether half of the machine's memory holds the weights, their gradients and as much again."""
    with torch.device("meta"):
        model = build_model(recipe, data.tokenizers)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    return 3 * size <= memory_bytes(_CPU) / 2


def _frequency_loss(case: _Case) -> float:
    targets: list[Tensor] = [batch.target_out for update in case.text for batch in update.batches]
    size = sized_model(case.recipe.model, case.data.tokenizers).vocab_size
    return frequency_loss(targets, num_ids=size - 1, label_smoothing=case.smoothing)


def _described(case: _Case) -> dict[str, Any]:
    recipe, shape = case.recipe, case.recipe.model
    return {
        "updates": case.steps,
        "of": case.run,
        "warmup_steps": case.schedule.warmup_steps,
        "d_model": shape.d_model,
        "encoder_layers": shape.encoder_layers,
        "decoder_layers": shape.decoder_layers,
        "max_tokens": recipe.batching.max_tokens,
        "optimizer": recipe.optimizer.name,
        "lr": recipe.optimizer.lr,
        "seed": recipe.training.seed,
    }
