"""The training loop: one update after the other, with all that has to happen around it.

Engines wrap it from outside: the loss is divided by the token count of the whole update, the data side deals
micro-batches to ranks, rank 0 alone writes. Dropout is seeded per micro-batch by (seed, step, place in the update), so
the same update draws the same masks in a resumed run and on another number of ranks.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from deepnet.errors import ConfigError, DivergenceError
from deepnet.record import RunFolder, append_jsonl, keep_steps
from deepnet.training.averaging import MovingAverage
from deepnet.training.batches import Updates, updates_from
from deepnet.training.checkpoint import (
    Trained,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from deepnet.training.distributed import Ranks
from deepnet.training.interruption import Interruption
from deepnet.training.memory import memory_shortage_explained
from deepnet.training.optimizers import (
    PolicyRow,
    applied_learning_rate,
    build_optimizer,
    plain_policies,
    set_learning_rate,
)
from deepnet.training.precision import Precision, resolve_precision
from deepnet.training.recompute import recomputed
from deepnet.training.schedules import learning_rate, resolve_schedule
from deepnet.training.session import (
    Prepare,
    Session,
    Sink,
    Validate,
    earlier_checkpoints,
    make_ready,
    refuse_what_has_no_effect,
    resolved_sections,
)
from deepnet.training.state import TrainingState
from deepnet.training.update import AfterUpdate, Loss, Updater


@dataclass(frozen=True)
class TrainingResult:
    """How a call of the loop ended."""

    stopped: str
    """max_steps, max_epochs, max_minutes, patience or interrupted."""
    step: int
    """Updates done, all sessions together."""
    best: float | None
    """The best figure of the metric that training.keep_best names, if there was a validation."""
    best_step: int | None
    """The step of that figure."""


def train_loop(
    model: nn.Module,
    *,
    loader: Updates,
    loss: Loss,
    run: RunFolder,
    training: TrainingConfig,
    optimizer: OptimizerConfig,
    schedule: ScheduleConfig,
    validate: Validate | None = None,
    prepare: Prepare | None = None,
    after_update: AfterUpdate | None = None,
    policies: Iterable[PolicyRow] | None = None,
    blocks: Sequence[nn.Module] = (),
    precision: Precision | None = None,
    ranks: Ranks | None = None,
    sinks: Sequence[Sink] = (),
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    on_resume: Callable[[], None] | None = None,
) -> TrainingResult:
    """Train any model on any updates with any loss until a limit is reached; the model is left as it was trained.

    `prepare` is called before the first update, and not when there is a checkpoint to go on from. `policies` are the
    parameters' multipliers (default: no weight decay on vectors), `blocks` what is recomputed, `settings` whatever else
    a resumed run must not change; `resume` goes on from the run's latest checkpoint, or from the beginning where there
    is none, and calls `on_resume` on the writer once it is read. Raises DivergenceError when a loss, gradient or weight
    is not finite, CheckpointError when a checkpoint cannot be written or read, ConfigError when settings contradict
    each other or the run that is resumed, DeepNetError when the memory does not suffice.
    """
    refuse_what_has_no_effect(training, validate=validate, blocks=blocks)
    ranks = ranks or Ranks()
    schedule = resolve_schedule(schedule, max_steps=training.max_steps)
    precision = precision or resolve_precision(training.precision, device=ranks.device)
    earlier = earlier_checkpoints(run.checkpoints, resume=resume)
    make_ready(model, ranks=ranks, prepare=None if earlier else prepare)
    trained = Trained(
        model=model,
        optimizer=build_optimizer(optimizer, policies=policies or plain_policies(model)),
        scaler=precision.scaler(),
        average=MovingAverage(model, decay=training.ema_decay) if training.ema_decay else None,
        state=TrainingState(),
    )
    updater = Updater(
        trained=trained,
        module=ranks.wrap(model),
        loss=loss,
        after_update=after_update,
        clip_norm=training.clip_norm,
        seed=training.seed,
        precision=precision,
        ranks=ranks,
    )
    session = Session(
        trained=trained,
        updater=updater,
        loader=loader,
        validate=validate,
        training=training,
        optimizer=optimizer,
        schedule=schedule,
        ranks=ranks,
        run=run,
        sinks=sinks,
        settings={**(settings or {}), **resolved_sections(training, optimizer, schedule)},
        updates_per_epoch=loader.updates_per_epoch(0),
    )
    if earlier:
        load_checkpoint(earlier[-1], trained=trained, settings=session.settings)
    if resume and ranks.is_writer:
        keep_steps(run.metrics_path, trained.state.step)
        if on_resume:
            on_resume()
    with recomputed(blocks) if training.recompute else nullcontext(), Interruption() as signals:
        stopped = _loop(session, signals)
    ranks.wait()
    state = trained.state
    return TrainingResult(stopped, state.step, state.best, state.best_step)


def _loop(session: Session, signals: Interruption) -> str:
    """Train until the end and return what ended it.

    An interruption saves and nothing else, so that the resumed run records and validates as if it had not happened.
    """
    state, training = session.trained.state, session.training
    started = before = time.monotonic()
    seconds_of_earlier_sessions = state.seconds
    positions = updates_from(session.loader, epoch=state.epoch, start=state.update)
    stopped = state.finished(training)
    while not stopped:
        position = next(positions)
        lr = _set_learning_rate(session)
        outcome = session.updater.run(
            position.update,
            interrupted=signals.requested,
            seconds=seconds_of_earlier_sessions + time.monotonic() - started,
        )
        state.count(position, outcome, seconds=time.monotonic() - before)
        stopped = state.finished(training) or ("interrupted" if outcome.interrupted else None)
        is_end = stopped not in (None, "interrupted")
        record = (
            _training_record(session, lr) if is_end or _every(training.log_every, state) else {}
        )
        is_best = False
        if session.validate and (is_end or _every(training.validate_every, state)):
            figures, is_best = _validate(session, session.validate)
            record |= figures
            stopped = stopped or state.finished(training)
        _write_record(session, record)
        if stopped or is_best or _every(training.save_every, state):
            _save(session)
        before = time.monotonic()
    return stopped


def _set_learning_rate(session: Session) -> float:
    """Set the rate of the coming update and return the one that takes effect."""
    step = session.trained.state.step
    lr = learning_rate(step, peak=session.optimizer.lr, config=session.schedule)
    set_learning_rate(session.trained.optimizer, lr)
    return applied_learning_rate(session.optimizer, lr=lr, step=step)


def _every(interval: int, state: TrainingState) -> bool:
    return interval > 0 and state.step % interval == 0


def _training_record(session: Session, lr: float) -> dict[str, Any]:
    """Return the means since the last record, and start anew."""
    state = session.trained.state
    progress = state.progress(session.training, updates_per_epoch=session.updates_per_epoch)
    return {"lr": lr, "progress": progress, **state.take_window()}


def _validate(session: Session, validate: Validate) -> tuple[dict[str, float], bool]:
    """Return the figures under the names of the record, and whether they are the best so far."""
    trained, metric = session.trained, session.training.keep_best
    trained.model.eval()
    holding = trained.average.in_place_of(trained.model) if trained.average else nullcontext()
    shortage = memory_shortage_explained(f"in the validation after step {trained.state.step}")
    with holding, torch.no_grad(), shortage:
        figures = session.ranks.from_writer(
            lambda: dict(validate(trained.model, trained.state.step))
        )
    trained.model.train()
    if metric not in figures:
        raise ConfigError(
            f"training.keep_best = '{metric}', but the validation gives {sorted(figures)}"
        )
    for name, value in figures.items():
        if not math.isfinite(value):
            raise DivergenceError(f"the validation {name} is {value} at step {trained.state.step}")
    is_best = trained.state.judge(figures[metric], higher_is_better=metric == "bleu")
    return {f"validation_{name}": value for name, value in figures.items()}, is_best


def _write_record(session: Session, record: Mapping[str, Any]) -> None:
    """Append what there is to say about this step, if anything, to metrics.jsonl and show it."""
    if not record or not session.ranks.is_writer:
        return
    state = session.trained.state
    where = {"step": state.step, "epoch": state.epoch, "tokens": state.num_tokens}
    full = {**where, "seconds": state.seconds, **record}
    append_jsonl(session.run.metrics_path, full)
    for sink in session.sinks:
        sink(full)


def _save(session: Session) -> None:
    if not session.ranks.is_writer:
        return
    folder, state = session.run.checkpoints, session.trained.state
    save_checkpoint(folder, trained=session.trained, settings=session.settings)
    prune_checkpoints(folder, keep_last=session.training.keep_last, best_step=state.best_step)
