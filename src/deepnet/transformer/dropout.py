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
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, rate)
    dropped: Tensor = _CpuDropout.apply(x, rate)  # type: ignore[no-untyped-call]
    return dropped


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


def draw_keep(count: int, rate: float) -> Tensor:
    """Return [count] uint8: 0 with probability `rate` (to 2^-16), else 1."""
    bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(_LOWEST, None)
    # in place as int16, then narrowed: torch compares into another type several times more slowly
    return bits.view(torch.int16)[:count].ge_(round(rate * _STEPS) - _STEPS // 2).to(torch.uint8)


def _masked(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    return keep.to(x.dtype).mul_(x).mul_(scale)
