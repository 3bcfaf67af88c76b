"""What is due after an update: recording, validating, saving; and what an interruption leaves to the resumed run."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch

from deepnet.errors import ConfigError, DivergenceError
from deepnet.record import append_jsonl
from deepnet.training.checkpoint.folder import prune_checkpoints, save_checkpoint
from deepnet.training.engine.memory import memory_shortage_explained
from deepnet.training.interruption import Interruption
from deepnet.training.session import Session
from deepnet.training.validation import Validation


def do_what_is_due(session: Session, signals: Interruption) -> str | None:
    """Validate, record and save what is due, and return what ends the run, if anything does.

    After an update that is no step nothing is due, as it was after the step before; at the end everything is.
    """
    state, training = session.state, session.plan.training
    stopped = state.finished(training)

    def is_due(interval: int) -> bool:
        at_interval = state.is_due and interval > 0 and state.step % interval == 0
        return stopped is not None or at_interval

    validates, records, saves = map(
        is_due, (training.validate_every, training.log_every, training.save_every)
    )
    if validates or records or saves:
        _catch_up(session)
    figures: dict[str, float] = {}
    if session.validation and validates:
        found = _validate(session, session.validation, signals)
        if found is None:
            return interrupt(session)
        figures = found
    record = _training_record(session) if records else {}
    is_best = bool(figures) and _is_best(session, figures)
    _write_record(session, record | {f"validation_{n}": value for n, value in figures.items()})
    stopped = stopped or state.finished(training)
    state.is_due = False
    if is_best or saves or stopped:
        save(session)
    return stopped


def interrupt(session: Session) -> str:
    """Save where the run is, before what is due."""
    _catch_up(session)
    state = session.state
    state.is_due = state.is_due or state.finished(session.plan.training) is not None
    save(session, interrupted=True)
    return "interrupted"


def _catch_up(session: Session) -> None:
    """Add up what updates have left unread where the guard is off; raises DivergenceError where it is not finite."""
    if session.trained.guard.config.watches:
        return
    state = session.state
    began = session.watch.seconds()
    loss, gradient_norm = session.unread.take(session.ranks.total)
    state.window.seconds += session.watch.seconds() - began  # the device works on what it was given
    state.window.loss += loss
    state.window.gradient_norm += gradient_norm
    if not (math.isfinite(state.window.loss) and math.isfinite(state.window.gradient_norm)):
        raise DivergenceError(
            f"a loss or gradient of the updates by step {state.step} was not finite, and they were not looked at, as "
            "the guard is off; training stopped, and the latest checkpoint is as it was. Resume from it with "
            "guard.nan = 'stop', which names the update and the layer, or lower optimizer.lr"
        )


def _training_record(session: Session) -> dict[str, Any]:
    """Return the means since the last record, and start anew."""
    state = session.state
    progress = state.progress(
        session.plan.training, updates_per_epoch=session.plan.updates_per_epoch
    )
    return {"lr": state.lr, "progress": progress, **state.take_window()}


def _validate(
    session: Session, validation: Validation, signals: Interruption
) -> dict[str, float] | None:
    """Return the figures; None where a signal broke the validation off."""
    engine, average, step = session.engine, session.trained.average, session.state.step
    engine.model.eval()
    shortage = memory_shortage_explained(f"in the validation after step {step}")
    with average.in_place() if average else nullcontext(), torch.no_grad(), shortage:
        shares = engine.evaluate(
            lambda: validation.measure(engine.model, step), guarded=signals.unless_requested
        )
    engine.model.train()
    if shares is None:
        return None
    return session.ranks.from_writer(lambda: dict(validation.combine(shares)))


def _is_best(session: Session, figures: Mapping[str, float]) -> bool:
    """Return whether the figures of a validation are the best so far."""
    state, metric = session.state, session.plan.training.keep_best
    if metric not in figures:
        raise ConfigError(
            f"training.keep_best = '{metric}', but the validation gives {sorted(figures)}"
        )
    for name, value in figures.items():
        if not math.isfinite(value):
            raise DivergenceError(f"the validation {name} is {value} at step {state.step}")
    return state.judge(figures[metric], higher_is_better=metric == "bleu")


def _write_record(session: Session, record: Mapping[str, Any]) -> None:
    """Append what there is to say about this step, if anything, to metrics.jsonl and show it."""
    if not record or not session.ranks.is_writer:
        return
    state = session.state
    where = {"step": state.step, "epoch": state.epoch, "tokens": state.num_tokens}
    full = {**where, "seconds": state.seconds, **record}
    append_jsonl(session.run.metrics_path, full)
    for sink in session.sinks:
        sink(full)


def save(session: Session, *, interrupted: bool = False) -> None:
    """Save a checkpoint and remove those that nothing needs; one of an interruption is none to go back to."""
    folder, state, guard = session.run.checkpoints, session.state, session.trained.guard
    if not interrupted and state.step not in guard.memory.good_steps:
        guard.memory.good_steps.append(state.step)
    needed = guard.keep_needed(state.step)
    if state.best_step is not None:
        needed.add(state.best_step)
    state.seconds_since = session.watch.seconds() - state.seconds
    with memory_shortage_explained(f"while step {state.step} was saved"):
        save_checkpoint(
            folder, trained=session.trained, settings=session.settings, interrupted=interrupted
        )
    if session.ranks.is_writer:
        prune_checkpoints(folder, keep_last=session.plan.training.keep_last, steps=needed)
    session.ranks.wait()
