"""Dropout; on a CPU, where drawing torch's mask costs more than the branch's matrices, from 16-bit integers."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_LOWEST = torch.iinfo(torch.int64).min
_STEPS = 2**16


def dropout(x: Tensor, rate: float, *, training: bool = True) -> Tensor:
    """Return `x` with each element zeroed at `rate` and the others divided by 1 - rate; `x` itself in evaluation.

    On a CPU the rate is rounded to a multiple of 2^-16. Both kinds draw from torch's generator of the device.
    """
    if not training or rate == 0.0:
        return x
    if not _draws_bits(x):
        return F.dropout(x, rate)
    dropped: Tensor = _CpuDropout.apply(x, rate)  # type: ignore[no-untyped-call]
    return dropped


def dropped_sum(
    skip: Tensor, y: Tensor, rate: float, *, skip_scale: float, branch_scale: float
) -> Tensor:
    """Return skip_scale * skip + branch_scale * dropout(y) of tensors of one shape, in training.

    On a CPU the branch is zeroed, scaled and added in one pass, where both are of one type.
    """
    if _draws_bits(y) and y.dtype == skip.dtype and y.shape == skip.shape:
        total: Tensor = _CpuDroppedSum.apply(skip, y, rate, skip_scale, branch_scale)  # type: ignore[no-untyped-call]
        return total
    y = dropout(y, rate)
    return torch.add(y if branch_scale == 1.0 else y * branch_scale, skip, alpha=skip_scale)


def _draws_bits(x: Tensor) -> bool:
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


class _CpuDropout(torch.autograd.Function):
    """Keeps a mask of one byte an element where torch keeps four, and draws four elements at a time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        keep = draw_keep(x.numel(), rate).view_as(x)
        ctx.save_for_backward(keep)
        ctx.scale = 1.0 / (1.0 - rate)
        return _masked(x, keep, ctx.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return _masked(gradients[0], keep, ctx.scale), None


class _CpuDroppedSum(torch.autograd.Function):
    """A skip plus a branch that is dropped, with one mask as that of `_CpuDropout`."""

    @staticmethod
    def forward(
        ctx: Any, skip: Tensor, y: Tensor, rate: float, skip_scale: float, branch_scale: float
    ) -> Tensor:
        keep = draw_keep(y.numel(), rate).view_as(y)
        ctx.save_for_backward(keep)
        ctx.skip_scale, ctx.scale = skip_scale, branch_scale / (1.0 - rate)
        if skip_scale == 1.0:
            return torch.addcmul(skip, keep.to(y.dtype), y, value=ctx.scale)
        return torch.mul(skip, skip_scale).addcmul_(keep.to(y.dtype), y, value=ctx.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (keep,), (g,) = ctx.saved_tensors, gradients
        g_skip = g if ctx.skip_scale == 1.0 else g * ctx.skip_scale
        return g_skip, _masked(g, keep, ctx.scale), None, None, None


def draw_keep(count: int, rate: float) -> Tensor:
    """Return [count] uint8: 0 with probability `rate` (to 2^-16), else 1."""
    bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(_LOWEST, None)
    # in place as int16, then narrowed: torch compares into another type several times more slowly
    return bits.view(torch.int16)[:count].ge_(round(rate * _STEPS) - _STEPS // 2).to(torch.uint8)


def _masked(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    return keep.to(x.dtype).mul_(x).mul_(scale)
