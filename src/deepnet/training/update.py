"""One update of the weights: passes over the micro-batches, what they showed, the guard's judgement, the step."""

import hashlib
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepnet.training.batches import Batch, Update
from deepnet.training.engine.compile import eager
from deepnet.training.engine.memory import memory_shortage_explained
from deepnet.training.guard.examine import examine
from deepnet.training.guard.judge import Verdict
from deepnet.training.guard.signals import Signals
from deepnet.training.optimization.rate import set_rate
from deepnet.training.session import Session
from deepnet.training.state import Evidence, Outcome


def run_update(
    session: Session, update: Update, *, interrupted: Callable[[], bool], began: float
) -> Outcome:
    """Compute one update and apply it, unless the guard forbids that; `began` is when it did by this rank's clock.

    `interrupted` is asked after the passes whether a signal has reached this rank. Raises DeepNetError where the memory
    does not suffice.
    """
    engine = session.engine
    if engine.steps_in_backward:  # by the clock of its one process
        set_rate(session, began)
    loss = _backward(session, update)
    with memory_shortage_explained(f"when the weights took step {session.state.step + 1}"):
        gradients = engine.measure_gradients()
        norm = torch.linalg.vector_norm(gradients)
        # made here and not on the device, to which a number is brought by waiting for it
        told = torch.tensor([interrupted(), began * session.ranks.is_writer], dtype=torch.float64)
        if session.trained.guard.config.watches or engine.scaler.is_enabled():
            return _seen(session, update, loss, gradients, norm, told)
        session.unread.add(loss, norm)
        interruptions, seconds = session.ranks.total(told).tolist()
        lr = set_rate(session, seconds)
        _step(session, norm)
        return Outcome(interrupted=interruptions > 0, seconds=seconds, lr=lr)


def _seen(
    session: Session, update: Update, loss: Tensor, gradients: Tensor, norm: Tensor, told: Tensor
) -> Outcome:
    """Read what the passes showed, judge it, and apply the update unless that forbids it."""
    shown = _read(session, loss, gradients, norm, told)
    lr = set_rate(session, shown.seconds)
    signals = Signals(
        step=session.state.step + 1,
        lr=lr,
        loss=shown.loss / update.num_tokens,
        gradient_norm=shown.gradient_norm,
        gradients=shown.gradients,
        norm_inputs=shown.norm_inputs,
    )
    verdict, evidence = _judge(session, signals, update)
    if verdict is None or verdict.applies:
        _step(session, norm, clips=math.isfinite(signals.gradient_norm))
    session.engine.scaler.update()
    return Outcome(
        interrupted=shown.interruptions > 0,
        seconds=shown.seconds,
        lr=lr,
        loss=shown.loss,
        gradient_norm=shown.gradient_norm,
        signals=signals,
        verdict=verdict,
        evidence=evidence,
    )


def _backward(session: Session, update: Update, *, sends: bool = True) -> Tensor:
    """Add up the gradients of this rank's micro-batches; return their summed loss, float64 on the device.

    Where it `sends`, the gradients become those of all ranks.
    """
    engine, ranks, step = session.engine, session.ranks, session.state.step + 1
    engine.drop_gradients()
    total = torch.zeros((), dtype=torch.float64, device=ranks.device)
    last = len(update.batches) - 1
    for index in range(engine.num_passes(last + 1)):
        batch = update.batches[min(index, last)]
        loss = partial(_loss, session, batch)
        _seed(session, place=index * ranks.world_size + ranks.rank)
        with memory_shortage_explained(f"at step {step}", batch):
            if index > last:
                engine.keep_up(loss)
                continue
            total += engine.add_gradients(
                loss, num_tokens=update.num_tokens, sends=sends and index == last
            )
    return total


def _loss(session: Session, batch: Batch, module: nn.Module) -> Tensor:
    return session.loss(module, batch.to(session.ranks.device))


def _seed(session: Session, *, place: int) -> None:
    """Make the dropout of a micro-batch a function of seed, step and its place among all ranks' micro-batches."""
    text = f"{session.plan.training.seed} {session.state.step} {place}"
    torch.manual_seed(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1)


class _Shown(NamedTuple):
    """What the passes showed, the same on every rank."""

    loss: float
    """Summed over the target tokens of all ranks."""
    interruptions: float
    """Ranks that a signal has reached."""
    seconds: float
    """The writer's clock when the update began."""
    norm_inputs: Tensor
    """Float32 [S]: root mean square of what entered each site's norm."""
    gradient_norm: float
    """Of the whole gradient."""
    gradients: Tensor
    """Float32 [P]: the norm of each parameter's."""


def _read(session: Session, loss: Tensor, gradients: Tensor, norm: Tensor, told: Tensor) -> _Shown:
    """Return what the passes showed: the one time that an update waits for the device, and one message to all ranks.

    `told` [2] is of this rank: whether a signal has reached it, and its clock if it is the writer.
    """
    own = torch.cat([loss[None], session.norm_inputs.take(loss.device)])
    read = torch.cat([own, norm.double()[None], gradients.double()]).cpu()
    own, gradients = read.tensor_split([len(own)])
    total = session.ranks.total(torch.cat([own[:1], told, own[1:]]))
    squares, counts = total[3:].chunk(2)
    return _Shown(
        loss=total[0].item(),
        interruptions=total[1].item(),
        seconds=total[2].item(),
        norm_inputs=(squares / counts.clamp(min=1)).sqrt().float(),
        gradient_norm=gradients[0].item(),
        gradients=gradients[1:].float(),
    )


def _judge(
    session: Session, signals: Signals, update: Update
) -> tuple[Verdict | None, Evidence | None]:
    """Return what the guard says, and what was looked at where it says something new.

    It is not asked where it is off, or the scaler can answer an overflow of fp16 by a smaller scale. Weights that have
    moved cannot show the update again.
    """
    scaler, guard = session.engine.scaler, session.trained.guard
    overflow = math.isfinite(signals.loss) and not math.isfinite(signals.gradient_norm)
    if not guard.config.watches or (overflow and scaler.is_enabled() and scaler.get_scale() >= 1):
        return None, None
    verdict = guard.judge(signals)
    if verdict is None or not verdict.is_new or session.engine.steps_in_backward:
        return verdict, None
    return examine(session, verdict, signals, partial(_compute_again, session, update))


def _compute_again(session: Session, update: Update) -> None:
    """Run the passes of an update once more, with the same dropout; nothing stays of it."""
    model, device = session.engine.model, session.ranks.device
    buffers = [buffer.clone() for buffer in model.buffers()]
    generators = [device] if device.type == "cuda" else []
    try:
        # listeners that are new reach no module inside a compiled block
        as_written = eager(compiles=session.plan.compiles)
        with as_written, torch.random.fork_rng(generators), session.engine.kept_gradients():
            _backward(session, update, sends=False)
    finally:
        for buffer, held in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(held)
        session.norm_inputs.take(device)


def _step(session: Session, norm: Tensor, *, clips: bool = True) -> None:
    """Apply the gradient, whose norm is given, clipped unless that is known not to be finite."""
    trained, step = session.trained, session.state.step + 1
    session.probes.before_step(step)
    clip_norm = session.plan.training.clip_norm if clips else 0.0
    trained.engine.step(norm=norm, clip_norm=clip_norm)
    if session.after_update:
        session.after_update(trained.engine.model, step)
    if trained.average:
        trained.average.update(step - 1)
