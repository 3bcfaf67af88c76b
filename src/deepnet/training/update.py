"""One update of the weights: forward and backward per micro-batch, clip, step."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from deepnet.errors import DivergenceError
from deepnet.training.batches import Batch, Update
from deepnet.training.checkpoint import Trained
from deepnet.training.distributed import Ranks
from deepnet.training.memory import memory_shortage_explained
from deepnet.training.precision import Precision
from deepnet.training.state import Outcome

Loss = Callable[[nn.Module, Any], Tensor]
"""(model, batch) -> the loss summed over the batch's target tokens, a scalar."""
AfterUpdate = Callable[[nn.Module, int], None]
"""(model, updates done) -> None, called after each update: what a scheme does to the weights or to its schedule."""


@dataclass(frozen=True)
class Updater:
    """Applies updates to a model that an engine has wrapped."""

    trained: Trained
    module: nn.Module
    loss: Loss
    after_update: AfterUpdate | None
    clip_norm: float
    seed: int
    precision: Precision
    ranks: Ranks

    def run(self, update: Update, *, interrupted: bool, seconds: float) -> Outcome:
        """Do one update; raises DivergenceError, before any weight is touched, when loss or gradient is not finite.

        The loss and the norm are read on every update, which on CUDA waits for the device twice. Raises DeepNetError
        where the memory does not suffice.
        """
        loss = self._backward(update)
        stats = torch.stack([loss, loss.new_tensor(interrupted), loss.new_tensor(seconds)])
        stats[2] *= self.ranks.is_writer
        total, interruptions, clock = self.ranks.total(stats).tolist()
        if not math.isfinite(total):
            raise DivergenceError(self._diverged("loss", total))
        with memory_shortage_explained(f"when the weights took step {self.trained.state.step + 1}"):
            norm = self._step()
        return Outcome(total, norm, interruptions > 0, clock)

    def _backward(self, update: Update) -> Tensor:
        """Add up the gradients of this rank's micro-batches; return their summed loss, float64 on the device."""
        ranks, step = self.ranks, self.trained.state.step + 1
        self.trained.optimizer.zero_grad(set_to_none=True)
        # an engine averages gradients over the ranks; multiplied by their number, the average is the sum
        scale = ranks.world_size / update.num_tokens
        total = torch.zeros((), dtype=torch.float64, device=ranks.device)
        for index, batch in enumerate(update.batches):
            self._seed(index * ranks.world_size + ranks.rank)
            is_last = index == len(update.batches) - 1
            with (
                memory_shortage_explained(f"at step {step}", batch),
                ranks.without_sync(self.module, when=not is_last),
            ):
                total += self._add_gradients(batch, scale)
        return total

    def _add_gradients(self, batch: Batch, scale: float) -> Tensor:
        """Add the gradients of one micro-batch; return its summed loss."""
        with self.precision.autocast():
            loss = self.loss(self.module, batch.to(self.ranks.device))
        self.trained.scaler.scale(loss * scale).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _step(self) -> float:
        """Clip and apply the gradient; return its norm before clipping."""
        trained = self.trained
        trained.scaler.unscale_(trained.optimizer)
        parameters = [p for p in trained.model.parameters() if p.grad is not None]
        norm_tensor = get_total_norm([p.grad for p in parameters if p.grad is not None])
        norm = norm_tensor.item()
        self._check_gradient(norm)
        if self.clip_norm and math.isfinite(norm):
            clip_grads_with_norm_(parameters, self.clip_norm, norm_tensor)
        trained.scaler.step(trained.optimizer)
        trained.scaler.update()
        if self.after_update:
            self.after_update(trained.model, trained.state.step + 1)
        if trained.average:
            trained.average.update(trained.model)
        return norm

    def _check_gradient(self, norm: float) -> None:
        """Refuse a gradient that is not finite, unless the scaler can answer fp16's overflow by a smaller scale."""
        scaler = self.trained.scaler
        if not math.isfinite(norm) and (not scaler.is_enabled() or scaler.get_scale() < 1):
            raise DivergenceError(self._diverged("gradient norm", norm))

    def _diverged(self, what: str, value: float) -> str:
        state = self.trained.state
        return (
            f"the {what} is {value} at step {state.step + 1} (update {state.update + 1} of epoch {state.epoch + 1}); "
            "training stopped before the weights took it, and the latest checkpoint is as it was. "
            "Lower optimizer.lr, lengthen the warm-up, set training.clip_norm, or try another scheme"
        )

    def _seed(self, place: int) -> None:
        """Make the dropout of a micro-batch a function of seed, step and its place among all ranks' micro-batches."""
        text = f"{self.seed} {self.trained.state.step} {place}"
        torch.manual_seed(
            int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
        )
