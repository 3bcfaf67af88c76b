"""Activation recompute, put around the blocks of a model from outside."""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


@contextmanager
def recomputed(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Make each block compute its activations again in the backward pass, for the length of the context.

    Gradients and dropout masks stay the same, bit for bit, and so do the names of the parameters: only the forward of
    these instances is replaced.
    """
    blocks = list(blocks)
    for block in blocks:
        block.forward = functools.partial(_recompute, block.forward)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward  # the class has its own again


def _recompute(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=True, **kwargs)
