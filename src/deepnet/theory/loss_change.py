"""The loss's change in an optimiser's first update, predicted to first order and measured.

The first update of a weight W with gradient g, per unit of learning rate, without weight decay and with eps negligible:

    SGD    -g                   predicts  -||g||^2
    Adam   -sign(g)             predicts  -||g||_1
    LAMB   -rms(W) * sign(g)    predicts  -rms(W) * ||g||_1     (trust ratio ||W|| / ||sign(g)||; 1 where W is zero)

Source: Su, kexue.fm/archives/8978, section "several optimisers"; LAMB as in arXiv 1904.00962, algorithm 2.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from deepnet.schemes.base import OptimizerFamily
from deepnet.theory.bounds import root_mean_square


@dataclass(frozen=True, kw_only=True)
class LossChange:
    """What one update was predicted to change the loss by, and what it did at this and at half the learning rate."""

    predicted: float
    measured: float
    measured_at_half: float

    @property
    def halving(self) -> float:
        """Return twice the change at half the rate over the change at the full one: 1 where first order holds."""
        return 2.0 * self.measured_at_half / self.measured


def first_update(weight: Tensor, gradient: Tensor, *, optimizer: OptimizerFamily) -> Tensor:
    """Return the first change of `weight` per unit of learning rate."""
    if optimizer == "sgd":
        return -gradient
    if optimizer == "adam":
        return -gradient.sign()
    size = float(root_mean_square(weight))
    return -(size or 1.0) * gradient.sign()


def loss_change(
    loss: Callable[[], Tensor],
    weights: Sequence[Tensor],
    *,
    optimizer: OptimizerFamily,
    lr: float,
) -> LossChange:
    """Return predicted and measured change of `loss` when `weights` make their first update; they are put back."""
    before = loss()
    gradients = torch.autograd.grad(before, list(weights), materialize_grads=True)
    steps = [
        first_update(w.detach(), g, optimizer=optimizer)
        for w, g in zip(weights, gradients, strict=True)
    ]
    start = float(before.detach())
    predicted = sum(float((g * s).sum()) for g, s in zip(gradients, steps, strict=True))
    return LossChange(
        predicted=lr * predicted,
        measured=_loss_after(loss, weights, steps, lr) - start,
        measured_at_half=_loss_after(loss, weights, steps, lr / 2) - start,
    )


@torch.no_grad()
def _loss_after(
    loss: Callable[[], Tensor], weights: Sequence[Tensor], steps: Sequence[Tensor], lr: float
) -> float:
    with moved(weights, steps, lr=lr):
        return float(loss())


@contextmanager
def moved(weights: Sequence[Tensor], steps: Sequence[Tensor], *, lr: float) -> Iterator[None]:
    """Add lr * step to each weight while this is open, then put back the very values there were."""
    kept = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        for weight, step in zip(weights, steps, strict=True):
            weight.add_(step, alpha=lr)
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, value in zip(weights, kept, strict=True):
                weight.copy_(value)
