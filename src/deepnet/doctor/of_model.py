"""Whether a model of one's own will train: a copy of it trains for a few hundred updates on its batches and loss."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import cycle
from typing import Any

from torch import nn

from deepnet.config import build
from deepnet.doctor.diagnosis import Diagnosis, diagnose
from deepnet.doctor.proxy import compressed, follow_in_time, run_length
from deepnet.doctor.risk import shipped_weights
from deepnet.doctor.signs import read_signs
from deepnet.doctor.trial import STEPS, Settings, refuse_too_few, take_steps
from deepnet.errors import AdaptError, ConfigError
from deepnet.pipeline.beginning import preparation
from deepnet.pipeline.entry import LoopSettings, policies_of
from deepnet.probes.listening import output_in
from deepnet.probes.recorder import Recorder
from deepnet.training.batches import Batch, ListedUpdate
from deepnet.training.session import Loss
from deepnet.transformer.models import Transformer

_LIMITS = {"max_steps", "max_epochs", "max_minutes"}


def doctor(
    model: nn.Module,
    batches: Iterable[Batch],
    loss: Loss,
    *,
    settings: Mapping[str, Any] | None = None,
    count: Callable[[Any], int] | None = None,
    frequency_loss: float | None = None,
    steps: int = STEPS,
) -> Diagnosis:
    """Return whether a model of one's own will train, from updates of a copy of it; `model` stays as it is.

    `loss(model, batch)` is divided by `count(batch)`, by default 1, and `settings` are a recipe's sections training,
    optimizer and schedule, as in `train_model`. The batches are on the CPU, as the model is, and repeated, one an
    update. `frequency_loss` is the loss of who knows how often each token comes and nothing else, where there is such a
    thing. Nothing is made narrower: give a narrow model. What needs known residual sites is left out of one without.
    Raises ConfigError for settings that contradict each other, or no batches.
    """
    refuse_too_few(steps)
    batches, given = list(batches), dict(settings or {})
    training = given.get("training", {})
    limit = {} if training.keys() & _LIMITS else {"max_steps": steps}
    checked = build(LoopSettings, {**given, "training": {**training, **limit}})
    if not batches:
        raise ConfigError("there are no batches; give at least one, of which each makes an update")
    run = _updates_of(checked, batches)
    own = deepcopy(model)
    stepping = _prepared(own, checked, batches, loss, run=run, steps=steps)
    updates = [ListedUpdate((batch,), _counted(batch, count)) for batch in batches]
    recorder = _recorder_of(own, batches[0], loss)
    trial = take_steps(
        own, cycle(updates), steps=steps, loss=loss, settings=stepping, recorder=recorder
    )
    return diagnose(
        read_signs(trial, frequency_loss=frequency_loss),
        weights=shipped_weights(),
        beside=[],
        trial={"updates": steps, "of": run, "warmup_steps": stepping.schedule.warmup_steps},
        optimizer=checked.optimizer,
        schedule=checked.schedule,
    )


def _counted(batch: Batch, count: Callable[[Any], int] | None) -> int:
    found = count(batch) if count else 1
    if found < 1:
        raise ConfigError(
            f"count(batch) is {found}; expected at least 1, by which the loss is divided"
        )
    return found


def _updates_of(settings: LoopSettings, batches: Sequence[Batch]) -> int:
    limits = (settings.training.max_steps, settings.training.max_epochs * len(batches))
    return run_length(settings.schedule, updates=min(filter(None, limits), default=None))


def _prepared(
    model: nn.Module,
    settings: LoopSettings,
    batches: Sequence[Batch],
    loss: Loss,
    *,
    run: int,
    steps: int,
) -> Settings:
    """Let the scheme of a model of ours prepare itself, and return how the weights are stepped."""
    ours = model if isinstance(model, Transformer) else None
    if ours and (prepare := preparation(ours, batches, loss=loss)):
        prepare(ours)
    optimizer = settings.optimizer
    return Settings(
        optimizer=optimizer,
        schedule=compressed(settings.schedule, run=run, steps=steps, optimizer=optimizer),
        clip_norm=settings.training.clip_norm,
        policies=policies_of(model, optimizer),
        after_update=partial(follow_in_time, max(run / steps, 1.0)) if ours else None,
    )


def _recorder_of(model: nn.Module, batch: Batch, loss: Loss) -> Recorder | None:
    """Return the probes of a model, None where its residual sites are not known."""
    try:
        return Recorder(model, lambda m: output_in(m, lambda: loss(m, batch)))
    except AdaptError:
        return None
