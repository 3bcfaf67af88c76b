"""The training loop: one update after the other, with all that has to happen around it.

Engines wrap it from outside: the loss is divided by the token count of the whole update, the data side deals
micro-batches to ranks, rank 0 alone writes. Dropout is seeded per micro-batch by (seed, step, place in the update), so
the same update draws the same masks in a resumed run and on another number of ranks.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from deepnet.record import RunFolder
from deepnet.training.batches import Updates, updates_from
from deepnet.training.checkpoint.folder import (
    Trained,
    load_checkpoint,
    read_header,
)
from deepnet.training.checkpoint.resume import kept_annealing, kept_precision, kept_warmup
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from deepnet.training.due import do_what_is_due, interrupt, save
from deepnet.training.engine.precision import Precision, resolve_precision
from deepnet.training.engine.ranks import Ranks
from deepnet.training.engine.recompute import recomputed
from deepnet.training.guard.config import GuardConfig
from deepnet.training.guard.examine import Examination
from deepnet.training.guard.judge import Guard, Verdict
from deepnet.training.guard.respond import forget_incidents, forget_later, respond
from deepnet.training.guard.signals import NormInputs, watched_parameters
from deepnet.training.interruption import Interruption
from deepnet.training.optimization.averaging import MovingAverage
from deepnet.training.optimization.optimizers import PolicyRow, build_optimizer, plain_policies
from deepnet.training.optimization.rate import set_rate
from deepnet.training.optimization.schedules import resolve_end
from deepnet.training.probing import Probes, Probing
from deepnet.training.session import (
    Prepare,
    Session,
    Sink,
    Validate,
    averaging_settings,
    earlier_checkpoint,
    make_ready,
    refuse_what_has_no_effect,
    resolved_sections,
)
from deepnet.training.state import Outcome, TrainingState
from deepnet.training.stopwatch import Clock, Stopwatch
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
    on_incident: Sequence[Sink] = (),
    guard: GuardConfig | None = None,
    probing: Probing | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    on_resume: Callable[[], None] | None = None,
    clock: Clock = time.monotonic,
) -> TrainingResult:
    """Train any model on any updates with any loss until a limit is reached; the model is left as it was trained.

    `prepare` is called before the first update, and not when there is a checkpoint to go on from. `policies` are the
    parameters' multipliers (default: no weight decay on vectors), `blocks` what is recomputed, `guard` what is done
    about trouble (default: warn, stop where nothing is finite), `probing` what is measured on the way, `settings`
    whatever else a resumed run must not change; `resume` goes on from the run's latest checkpoint, or from the
    beginning where there is none, and calls `on_resume` on the writer once it is read. `clock` measures
    training.max_minutes. Raises DivergenceError where the guard stops the run or a weight is not finite,
    CheckpointError when a checkpoint cannot be written or read, ConfigError when settings contradict each other or the
    run that is resumed, DeepNetError when the memory does not suffice.
    """
    refuse_what_has_no_effect(training, validate=validate, blocks=blocks)
    ranks = ranks or Ranks()
    updates_per_epoch = loader.updates_per_epoch(0)
    schedule, annealing = resolve_end(schedule, training, updates_per_epoch=updates_per_epoch)
    earlier = earlier_checkpoint(run.checkpoints, resume=resume)
    saved = read_header(earlier)["settings"] if earlier else {}
    warms_up = not earlier or kept_warmup(saved)
    precision = precision or resolve_precision(
        kept_precision(training.precision, saved), device=ranks.device
    )
    training = training.model_copy(update={"precision": precision.name})
    if saved:
        annealing = kept_annealing(annealing, schedule, saved)
    make_ready(model, ranks=ranks, prepare=None if earlier else prepare)
    norm_inputs = NormInputs(model)
    trained = Trained(
        model=model,
        optimizer=build_optimizer(optimizer, policies=policies or plain_policies(model)),
        scaler=precision.scaler(),
        average=_average(model, training, warms_up=warms_up),
        guard=_guard(guard or GuardConfig(), model, norm_inputs),
        state=TrainingState(),
    )
    probes = Probes(probing, model=model, run=run, ranks=ranks)
    updater = Updater(
        trained=trained,
        module=ranks.wrap(model),
        loss=loss,
        after_update=after_update,
        before_step=lambda: probes.before_step(trained.state.step + 1),
        examine=Examination(
            model,
            history=trained.guard.history,
            norm_inputs=norm_inputs,
            probes=probes,
            ranks=ranks,
        ),
        norm_inputs=norm_inputs,
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
        annealing=annealing,
        watch=Stopwatch(clock),
        ranks=ranks,
        run=run,
        probes=probes,
        sinks=sinks,
        on_incident=on_incident,
        settings={
            **(settings or {}),
            **resolved_sections(training, optimizer, schedule, annealing),
            **averaging_settings(training, warms_up=warms_up),
        },
        updates_per_epoch=updates_per_epoch,
    )
    _begin(session, earlier, resume=resume, on_resume=on_resume)
    recompute = recomputed(blocks) if training.recompute else nullcontext()
    with recompute, norm_inputs.open(), Interruption() as signals:
        stopped = _loop(session, signals)
    ranks.wait()
    state = trained.state
    return TrainingResult(stopped, state.step, state.best, state.best_step)


def _average(model: nn.Module, training: TrainingConfig, *, warms_up: bool) -> MovingAverage | None:
    decay = training.ema_decay
    return MovingAverage(model, decay=decay, warms_up=warms_up) if decay else None


def _guard(config: GuardConfig, model: nn.Module, norm_inputs: NormInputs) -> Guard:
    parameters = watched_parameters(model)
    return Guard(
        config,
        parameters=parameters,
        norm_inputs=norm_inputs.places,
        norm_sources=norm_inputs.sources,
    )


def _begin(
    session: Session, earlier: Path | None, *, resume: bool, on_resume: Callable[[], None] | None
) -> None:
    """Put everything where the run goes on from: its files, its probes."""
    trained, run = session.trained, session.run
    if earlier:
        load_checkpoint(earlier, trained=trained, settings=session.settings)
    session.watch.start(at=trained.state.seconds + trained.state.seconds_since)
    if resume and session.ranks.is_writer:
        forget_later(run, trained.state)
        forget_incidents(run, keep=trained.guard.memory.num_incidents)
        if on_resume:
            on_resume()
    session.probes.begin(resumed=earlier is not None)


def _loop(session: Session, signals: Interruption) -> str:
    """Train until the end and return what ended it.

    An interruption saves at once and nothing else; the resumed run first does what was due then, so that it records,
    validates and saves as if nothing had happened.
    """
    state, training, watch = session.trained.state, session.training, session.watch
    positions = updates_from(session.loader, epoch=state.epoch, start=state.update)
    stopped = do_what_is_due(session, signals) if state.is_due else state.finished(training)
    if session.trained.guard.lacks_way_back:
        save(session)
    while not stopped:
        began = watch.seconds()
        position = next(positions)
        outcome = session.updater.run(
            position.update,
            set_rate=partial(set_rate, session),
            interrupted=lambda: signals.requested,
            seconds=began,
        )
        verdict = _verdict(session, outcome)
        if verdict and respond(session, verdict, position, outcome):
            positions = updates_from(session.loader, epoch=state.epoch, start=state.update)
            stopped = state.finished(training)
        else:
            state.count(position, outcome, seconds=watch.seconds() - began)
            interrupts = outcome.interrupted
            stopped = interrupt(session) if interrupts else do_what_is_due(session, signals)
    return stopped


def _verdict(session: Session, outcome: Outcome) -> Verdict | None:
    """Return what the guard said of an update, or says of what the probes read after it."""
    trained, step = session.trained, session.trained.state.step + 1
    moved = session.probes.after_step(step) if outcome.applied else None
    if outcome.verdict or moved is None:
        return outcome.verdict
    return trained.guard.judge_model_update(step, moved, layers=session.probes.changes())
