"""Activation recompute, put around the blocks of a model from outside."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from deepnet.training.engine.forwards import Forward, replaced_forwards


def recomputed(blocks: Iterable[nn.Module]) -> AbstractContextManager[None]:
    """Make each block compute its activations again in the backward pass, for the length of the context.

    Gradients and dropout masks stay the same, bit for bit.
    """
    return replaced_forwards(blocks, lambda _, forward: partial(_recompute, forward))


def _recompute(forward: Forward, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=True, **kwargs)
