"""Masks, in which True means "may attend"."""

import torch
from torch import Tensor


def broadcast_keep(keep: Tensor | None) -> Tensor | None:
    """Return `keep` [B, S] as [B, 1, 1, S], for every head and query; None keeps everything."""
    return None if keep is None else keep[:, None, None, :]


def causal_keep(keep: Tensor) -> Tensor:
    """Return [B, 1, T, T]: what `keep` [B, T] allows and does not lie in the future of the query.

    Every position may attend to itself, so that padding on the left has something to attend to.
    """
    length = keep.shape[1]
    past = torch.ones(length, length, dtype=torch.bool, device=keep.device).tril()
    itself = torch.eye(length, dtype=torch.bool, device=keep.device)
    return (keep[:, None, None, :] & past) | itself
