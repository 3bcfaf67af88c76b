"""Masks, in which True means "may attend", and what attention adds to its scores to carry them out."""

import math

import torch
from torch import Tensor

_ALIGNED = 8
"""Numbers a row must fill a multiple of for torch's efficient kernel, which else copies the mask in every layer."""


def broadcast_keep(keep: Tensor | None) -> Tensor | None:
    """Return `keep` [B, S] as [B, 1, 1, S], for every head and query; None keeps everything."""
    return None if keep is None else keep[:, None, None, :]


def causal_keep(keep: Tensor) -> Tensor:
    """Return [B, 1, T, T]: what `keep` [B, T] allows and does not lie in the future of the query.

    Every position may attend to itself, so that padding on the left has something to attend to.
    """
    past = past_keep(keep.shape[1], keep.device)
    itself = torch.eye(keep.shape[1], dtype=torch.bool, device=keep.device)
    return (keep[:, None, None, :] & past) | itself


def past_keep(length: int, device: torch.device) -> Tensor:
    """Return [1, 1, T, T]: what does not lie in the future of the query."""
    return torch.ones(1, 1, length, length, dtype=torch.bool, device=device).tril()


def score_bias(keep: Tensor | None, added: Tensor | None, *, dtype: torch.dtype) -> Tensor | None:
    """Return what is added to the scores, [B, 1 or H, 1 or T, C]: `added`, and minus infinity where `keep` is False.

    None where nothing is. On a device with kernels that want it, every row begins at a multiple of 8 numbers.
    """
    if added is not None:
        added = added.to(dtype)
    if keep is not None:
        rest = torch.zeros((), dtype=dtype, device=keep.device) if added is None else added
        added = torch.where(keep, rest, -math.inf)
    return None if added is None else _aligned(added.contiguous())


def per_head(bias: Tensor | None, num_heads: int) -> Tensor | None:
    """Return [B, H, 1, C] on a CPU, where the scores' product starts from it, if `bias` is about keys alone."""
    if bias is None or bias.device.type != "cpu" or bias.shape[2] != 1:
        return bias
    return bias.expand(-1, num_heads, -1, -1).contiguous()


def _aligned(bias: Tensor) -> Tensor:
    length = bias.shape[-1]
    if bias.device.type == "cpu" or length % _ALIGNED == 0:
        return bias
    return torch.nn.functional.pad(bias, (0, -length % _ALIGNED))[..., :length]
