"""One update of the weights: forward and backward per micro-batch, clip, step."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_

from deepnet.training.batches import Batch, Update
from deepnet.training.checkpoint.folder import Trained
from deepnet.training.engine.memory import memory_shortage_explained
from deepnet.training.engine.precision import Precision
from deepnet.training.engine.ranks import Ranks
from deepnet.training.guard.judge import Verdict
from deepnet.training.guard.signals import NormInputs, Signals, gradient_norms
from deepnet.training.state import Evidence, Outcome

Loss = Callable[[nn.Module, Any], Tensor]
"""(model, batch) -> the loss summed over the batch's target tokens, a scalar."""
AfterUpdate = Callable[[nn.Module, int], None]
"""(model, updates done) -> None, called after each update: what a scheme does to the weights or to its schedule."""
Examine = Callable[[Verdict, Signals, Callable[[], None]], tuple[Verdict, Evidence | None]]
"""(what the guard found, in what, how to compute the update again) -> the same with what else is known."""
SetRate = Callable[[float], float]
"""(the writer's clock when the update began, in seconds) -> the learning rate that takes effect, which it has set."""


@dataclass(frozen=True)
class Updater:
    """Applies updates to a model that an engine has wrapped."""

    trained: Trained
    module: nn.Module
    loss: Loss
    after_update: AfterUpdate | None
    norm_inputs: NormInputs
    before_step: Callable[[], None]
    """Called when the gradient of an update is there that will be applied; before clipping."""
    examine: Examine
    """Called when the guard has found something, before the weights take the update, if they do."""
    clip_norm: float
    seed: int
    precision: Precision
    ranks: Ranks

    def run(
        self, update: Update, *, set_rate: SetRate, interrupted: Callable[[], bool], seconds: float
    ) -> Outcome:
        """Compute one update and apply it, unless the guard forbids that; `seconds` is this rank's clock at its start.

        `interrupted` is asked after the backward pass whether a signal has reached this rank.

        The loss and the norms are read on every update, which on CUDA waits for the device three times. Raises
        DeepNetError where the memory does not suffice.
        """
        loss = self._backward(update)
        total, interruptions, clock, inputs = self._over_ranks(loss, interrupted(), seconds)
        lr = set_rate(clock)
        with memory_shortage_explained(f"when the weights took step {self.trained.state.step + 1}"):
            self.trained.scaler.unscale_(self.trained.optimizer)
            norms = gradient_norms(self.trained.model)
            norm = torch.linalg.vector_norm(norms)
            signals = Signals(
                step=self.trained.state.step + 1,
                lr=lr,
                loss=total / update.num_tokens,
                gradient_norm=norm.item(),
                gradients=norms.float().cpu(),
                norm_inputs=inputs,
            )
            verdict, evidence = self._judge(signals), None
            if verdict is not None and verdict.is_new:
                again = partial(self._compute_again, update)
                verdict, evidence = self.examine(verdict, signals, again)
            if verdict is None or verdict.applies:
                self._step(norm, clips=math.isfinite(signals.gradient_norm))
            self.trained.scaler.update()
        return Outcome(
            total, signals.gradient_norm, interruptions > 0, clock, signals, verdict, evidence
        )

    def _compute_again(self, update: Update) -> None:
        """Run the passes of an update once more, on this rank alone, with the same dropout; nothing stays of it."""
        model, device = self.trained.model, self.ranks.device
        gradients = [parameter.grad for parameter in model.parameters()]
        buffers = [buffer.clone() for buffer in model.buffers()]
        try:
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                self._backward(update, sends=False)
        finally:
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            for buffer, held in zip(model.buffers(), buffers, strict=True):
                buffer.copy_(held)
            self.norm_inputs.take(device)

    def _backward(self, update: Update, *, sends: bool = True) -> Tensor:
        """Add up the gradients of this rank's micro-batches; return their summed loss, float64 on the device.

        Where it `sends`, the gradients become those of all ranks.
        """
        ranks, step = self.ranks, self.trained.state.step + 1
        self.trained.optimizer.zero_grad(set_to_none=True)
        # an engine averages gradients over the ranks; multiplied by their number, the average is the sum
        scale = ranks.world_size / update.num_tokens
        total = torch.zeros((), dtype=torch.float64, device=ranks.device)
        ranks.wait()  # for what the writer has done alone; a forward pass may be an exchange, too
        for index, batch in enumerate(update.batches):
            self._seed(index * ranks.world_size + ranks.rank)
            is_last = index == len(update.batches) - 1
            with (
                memory_shortage_explained(f"at step {step}", batch),
                ranks.without_sync(self.module, when=not (is_last and sends)),
            ):
                total += self._add_gradients(batch, scale, meets=is_last)
        return total

    def _add_gradients(self, batch: Batch, scale: float, *, meets: bool) -> Tensor:
        """Add the gradients of one micro-batch, after meeting the other ranks or not; return its summed loss."""
        with self.precision.autocast():
            loss = self.loss(self.module, batch.to(self.ranks.device))
        if meets:
            self.ranks.wait()  # for the slowest, before gradients are exchanged
        self.trained.scaler.scale(loss * scale).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _over_ranks(
        self, loss: Tensor, interrupted: bool, seconds: float
    ) -> tuple[float, float, float, Tensor]:
        """Return the loss, the number of interrupted ranks, the writer's clock and the inputs of the norms."""
        stats = torch.stack([loss, loss.new_tensor(interrupted), loss.new_tensor(seconds)])
        stats[2] *= self.ranks.is_writer
        everything = self.ranks.total(torch.cat([stats, self.norm_inputs.take(loss.device)])).cpu()
        total, interruptions, clock = everything[:3].tolist()
        squares, counts = everything[3:].chunk(2)
        return total, interruptions, clock, (squares / counts.clamp(min=1)).sqrt().float()

    def _judge(self, signals: Signals) -> Verdict | None:
        """Let the guard judge, unless the scaler can answer an overflow of fp16 by a smaller scale."""
        scaler = self.trained.scaler
        overflow = math.isfinite(signals.loss) and not math.isfinite(signals.gradient_norm)
        if overflow and scaler.is_enabled() and scaler.get_scale() >= 1:
            return None
        return self.trained.guard.judge(signals)

    def _step(self, norm: Tensor, *, clips: bool) -> None:
        """Apply the gradient, whose norm is given, clipped where it is finite."""
        trained = self.trained
        self.before_step()
        if self.clip_norm and clips:
            clip_grads_with_norm_(trained.model.parameters(), self.clip_norm, norm)
        trained.scaler.step(trained.optimizer)
        if self.after_update:
            self.after_update(trained.model, trained.state.step + 1)
        if trained.average:
            trained.average.update(trained.model, trained.state.step)

    def _seed(self, place: int) -> None:
        """Make the dropout of a micro-batch a function of seed, step and its place among all ranks' micro-batches."""
        text = f"{self.seed} {self.trained.state.step} {place}"
        torch.manual_seed(
            int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
        )
