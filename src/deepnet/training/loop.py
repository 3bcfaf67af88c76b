"""The training loop: one update after the other, with all that has to happen around it.

An engine is put around the model from outside: the loss is divided by the token count of the whole update, the data
side deals micro-batches to ranks, rank 0 alone writes. Dropout is seeded per micro-batch by (seed, step, place in the
update), so the same update draws the same masks in a resumed run and on another number of ranks.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from deepnet.probes.norm_input import NormInputs
from deepnet.record import RunFolder
from deepnet.training.batches import Updates, updates_from
from deepnet.training.checkpoint.folder import load_checkpoint, read_header
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from deepnet.training.due import do_what_is_due, interrupt, save
from deepnet.training.engine.choice import make_engine
from deepnet.training.engine.compile import compiled
from deepnet.training.engine.in_backward import refuse_whole_gradients
from deepnet.training.engine.precision import Precision
from deepnet.training.engine.ranks import Ranks
from deepnet.training.engine.recompute import recomputing
from deepnet.training.guard.config import GuardConfig
from deepnet.training.guard.judge import Verdict
from deepnet.training.guard.respond import forget_incidents, forget_later, respond
from deepnet.training.interruption import Interruption
from deepnet.training.optimization.optimizers import PolicyRow
from deepnet.training.plan import settle
from deepnet.training.probing import Probes, Probing
from deepnet.training.session import (
    AfterUpdate,
    Loss,
    Prepare,
    Session,
    Sink,
    earlier_checkpoint,
    make_ready,
    refuse_probes_of_parts,
    refuse_what_has_no_effect,
)
from deepnet.training.state import Outcome
from deepnet.training.stopwatch import Clock, Stopwatch
from deepnet.training.trained import untrained
from deepnet.training.update import run_update
from deepnet.training.validation import Validate, Validation, taken_part_in


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
    validate: Validate | Validation | None = None,
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

    Where training.engine is "sharded" it is left in parts, and its checkpoints hold it whole.
    `prepare` is called before the first update, and not when there is a checkpoint to go on from. `policies` are the
    parameters' multipliers (default: no weight decay on vectors), `blocks` what is recomputed, compiled, and gathered
    at a time where the model is in parts, `guard` what is done about trouble (default: warn, stop where nothing is
    finite), `probing` what is measured on the way, `settings` whatever else a resumed run must not change; `resume`
    goes on from the run's latest checkpoint, or from the beginning where there is none, and calls `on_resume` on the
    writer once it is read. `clock` measures training.max_minutes. Raises DivergenceError where the guard stops the run
    or a weight is not finite, CheckpointError when a checkpoint cannot be written or read, ConfigError when settings
    contradict each other or the run that is resumed, DeepNetError when the memory does not suffice.
    """
    refuse_what_has_no_effect(training, model=model, validate=validate, blocks=blocks)
    refuse_probes_of_parts(training, probing)
    ranks, guard = ranks or Ranks(), guard or GuardConfig()
    earlier = earlier_checkpoint(run.checkpoints, resume=resume)
    plan = settle(
        training,
        optimizer,
        schedule,
        precision=precision,
        device=ranks.device,
        updates_per_epoch=loader.updates_per_epoch(0),
        has_blocks=bool(blocks),
        saved=read_header(earlier)["settings"] if earlier else {},
    )
    refuse_whole_gradients(
        plan.training,
        optimizer,
        guard,
        has_probes=probing is not None,
        num_processes=ranks.world_size,
    )
    make_ready(model, ranks=ranks, prepare=None if earlier else prepare)
    norm_inputs = NormInputs(model)
    engine = make_engine(model, plan, policies=policies, blocks=blocks, ranks=ranks)
    session = Session(
        trained=untrained(engine, plan, guard=guard, norm_inputs=norm_inputs),
        plan=plan,
        loader=loader,
        loss=loss,
        after_update=after_update,
        validation=taken_part_in(validate, training=training, ranks=ranks),
        norm_inputs=norm_inputs,
        probes=Probes(probing, model=model, run=run, ranks=ranks),
        run=run,
        sinks=sinks,
        on_incident=on_incident,
        settings={**(settings or {}), **plan.settings()},
        watch=Stopwatch(clock),
    )
    _begin(session, earlier, resume=resume, on_resume=on_resume)
    with _at_work(session, blocks), Interruption() as signals:
        stopped = _train(session, signals)
    ranks.wait()
    state = session.state
    return TrainingResult(stopped, state.step, state.best, state.best_step)


def _begin(
    session: Session, earlier: Path | None, *, resume: bool, on_resume: Callable[[], None] | None
) -> None:
    """Put everything where the run goes on from: its files, its probes."""
    trained, run, state = session.trained, session.run, session.state
    if earlier:
        load_checkpoint(earlier, trained=trained, settings=session.settings)
    session.watch.start(at=state.seconds + state.seconds_since)
    if resume and session.ranks.is_writer:
        forget_later(run, state)
        forget_incidents(run, keep=trained.guard.memory.num_incidents)
        if on_resume:
            on_resume()
    session.probes.begin(resumed=earlier is not None)
    session.ranks.wait()


@contextmanager
def _at_work(session: Session, blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Run the blocks as the plan says meanwhile, and listen to the norms where the guard looks."""
    plan = session.plan
    with ExitStack() as stack:
        if plan.compiles:
            stack.enter_context(compiled(blocks))
        stack.enter_context(recomputing(session.engine.model, plan.training, blocks=blocks))
        if session.trained.guard.config.watches:
            stack.enter_context(session.norm_inputs.open(session.ranks.device))
        yield


def _train(session: Session, signals: Interruption) -> str:
    """Train until the end and return what ended it.

    An interruption saves at once and nothing else; the resumed run first does what was due then, so that it records,
    validates and saves as if nothing had happened.
    """
    state, training, watch = session.state, session.plan.training, session.watch
    positions = updates_from(session.loader, epoch=state.epoch, start=state.update)
    stopped = do_what_is_due(session, signals) if state.is_due else state.finished(training)
    if session.trained.guard.lacks_way_back:
        save(session)
    while not stopped:
        began = watch.seconds()
        position = next(positions)
        outcome = run_update(
            session, position.update, interrupted=lambda: signals.requested, began=began
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
    probes, step = session.probes, session.state.step + 1
    moved = probes.after_step(step) if outcome.applied else None
    if outcome.verdict or moved is None:
        return outcome.verdict
    return session.trained.guard.judge_model_update(step, moved, layers=probes.changes())
