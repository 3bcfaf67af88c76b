"""What the run does about trouble: writes it down, and goes back to a good checkpoint where the guard says so."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from deepnet.errors import DivergenceError
from deepnet.probes.place import Place, by_layer
from deepnet.record import (
    RunFolder,
    append_jsonl,
    keep_steps,
    read_jsonl,
    rewrite_jsonl,
    write_json,
)
from deepnet.training.batches import Position
from deepnet.training.checkpoint.folder import (
    checkpoint_path,
    drop_checkpoints_after,
    load_checkpoint,
)
from deepnet.training.guard.config import GOES_BACK
from deepnet.training.guard.history import History
from deepnet.training.guard.judge import Verdict
from deepnet.training.guard.signals import Signals
from deepnet.training.session import Session
from deepnet.training.state import Evidence, Outcome, TrainingState

_UNRECORDED = ("norm", "bias")
"""Roles whose gradients the details leave out: they would double their size."""


def respond(session: Session, verdict: Verdict, position: Position, outcome: Outcome) -> bool:
    """Do what the guard decided about an update and return whether the run has gone back.

    Raises DivergenceError where it decided to stop, once the incident is written.
    """
    signals, back_to = outcome.signals, None
    assert signals is not None, "a guard that is off finds nothing"
    if verdict.action in GOES_BACK:
        back_to = session.trained.guard.back_to(signals.step)
    if verdict.is_new:
        session.trained.guard.memory.num_incidents += 1
        if session.ranks.is_writer:
            _write(session, verdict, position, signals, outcome.evidence, back_to)
        session.ranks.wait()
    if verdict.action == "stop":
        was_taken = outcome.verdict is None or session.engine.steps_in_backward
        raise DivergenceError(_stopped(session, verdict, position, was_taken=was_taken))
    if back_to is not None:
        _go_back(session, verdict, back_to)
        state = session.state
        state.epoch, state.update = position.following  # past the data that went wrong
        state.seconds = outcome.seconds
    return back_to is not None


def forget_later(run: RunFolder, state: TrainingState) -> None:
    """Cut the run's files back to a state, so that a run that goes on from there writes each step once."""
    recorded = state.step - 1 if state.is_due else state.step
    for path, step in ((run.metrics_path, recorded), (run.probes_path, state.step)):
        if path.exists():
            keep_steps(path, step)


def forget_incidents(run: RunFolder, *, keep: int) -> None:
    """Cut the incidents back to the first ones, as many as the checkpoint knows that the run goes on from.

    What the others undid goes with them.
    """
    if run.incidents_path.exists():
        rewrite_jsonl(run.incidents_path, read_jsonl(run.incidents_path)[:keep])
    if run.undone_path.exists():
        known = [one for one in read_jsonl(run.undone_path) if one["incident"] <= keep]
        rewrite_jsonl(run.undone_path, known)


def _keep_undone(run: RunFolder, step: int, *, incident: int) -> None:
    """Keep the records after a step, which going back there takes out of metrics.jsonl, in a file of their own."""
    for record in read_jsonl(run.metrics_path):
        if record["step"] > step:
            append_jsonl(run.undone_path, {**record, "incident": incident})


def _go_back(session: Session, verdict: Verdict, step: int) -> None:
    """Put everything back to what it was at `step`, but for what the guard has learnt."""
    trained, run, earlier = session.trained, session.run, session.trained.guard.memory
    path = checkpoint_path(run.checkpoints, step=step)
    load_checkpoint(path, trained=trained, settings=session.settings)
    trained.guard.recover(verdict, earlier, step=step)
    best = trained.state.best_step
    if best is not None and not checkpoint_path(run.checkpoints, step=best).exists():
        trained.state.forget_best()  # a later one had taken its place
    session.ranks.wait()
    if session.ranks.is_writer:
        drop_checkpoints_after(run.checkpoints, step=step)
        _keep_undone(run, step, incident=earlier.num_incidents)
        forget_later(run, trained.state)
    session.ranks.wait()


def _write(
    session: Session,
    verdict: Verdict,
    position: Position,
    signals: Signals,
    evidence: Evidence | None,
    back_to: int | None,
) -> None:
    """Append the incident to incidents.jsonl, its last updates to a file of its own, and show it."""
    run, sign = session.run, verdict.sign
    number = session.trained.guard.memory.num_incidents
    details = run.incidents / f"{number:04d}.json"
    run.incidents.mkdir(exist_ok=True)
    evidence = evidence or Evidence(again={}, probes=session.probes.latest)
    write_json(
        details,
        {
            **last_updates(session.trained.guard.history),
            "again": evidence.again,
            "probes": evidence.probes,
        },
        indent=None,
    )
    record = {
        "step": signals.step,
        "epoch": position.epoch,
        "update": position.index + 1,
        "kind": verdict.kind,
        "action": verdict.action,
        "where": None if verdict.where is None else str(verdict.where),
        "found_by": verdict.found_by,
        "sign": sign.name,
        "sign_at": None if sign.place is None else str(sign.place),
        "measure": sign.measure,
        "value": _finite(sign.value),
        "limit": sign.limit,
        "limit_from": sign.limit_from,
        "message": verdict.message,
        "back_to": back_to,
        "loss": _finite(signals.loss),
        "gradient_norm": _finite(signals.gradient_norm),
        "lr": signals.lr,
        "details": str(details.relative_to(run.path)),
    }
    append_jsonl(run.incidents_path, record)
    for show in session.on_incident:
        show(record)


def last_updates(history: History) -> dict[str, Any]:
    """Return what is remembered of the last updates, by place and layer, as JSON holds it."""
    rows = history.all()
    shown = [n for n, p in enumerate(history.parameters) if p.place.role not in _UNRECORDED]
    matrices = [history.parameters[number].place for number in shown]
    return {
        "steps": [row.step for row in rows],
        "lr": [row.lr for row in rows],
        "loss": [_finite(row.loss) for row in rows],
        "gradient_norm": [_finite(row.gradient_norm) for row in rows],
        "gradient": _over_updates(matrices, [row.gradients[shown] for row in rows]),
        "norm_input": _over_updates(history.norm_inputs, [row.norm_inputs for row in rows]),
    }


def _over_updates(places: Sequence[Place], rows: Sequence[Tensor]) -> dict[str, list[Any]]:
    """Return {"encoder.self.q": [[by layer] of each update]}; where parameters share a place, the norm of all."""
    stacks = {place.stack for place in places}
    num_layers = {stack: max(p.layer for p in places if p.stack == stack) for stack in stacks}
    tables = [
        by_layer(_together(places, row.double().square().tolist()), num_layers=num_layers)
        for row in rows
    ]
    return {key: [table[key] for table in tables] for key in (tables[0] if tables else {})}


def _together(places: Sequence[Place], squares: Sequence[float]) -> dict[Place, float]:
    sums: dict[Place, float] = {}
    for place, square in zip(places, squares, strict=True):
        sums[place] = sums.get(place, 0.0) + square
    return {place: math.sqrt(total) for place, total in sums.items()}


def _stopped(session: Session, verdict: Verdict, position: Position, *, was_taken: bool) -> str:
    where, step = f" in {verdict.where}" if verdict.where else "", session.state.step + 1
    moment = "after the weights took it" if was_taken else "before the weights took it"
    recoveries = session.trained.guard.memory.num_recoveries
    tried = f"The run has gone back {recoveries} times. " if recoveries else ""
    act = "" if recoveries else f", or let the guard act: guard.{verdict.kind} = 'roll_back'"
    return (
        f"{verdict.kind} at step {step} (update {position.index + 1} of epoch {position.epoch + 1})"
        f"{where}: {verdict.message}; training stopped {moment}, and the latest checkpoint is as it was. {tried}"
        f"Lower optimizer.lr, lengthen the warm-up, set training.clip_norm, try another scheme{act}"
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
