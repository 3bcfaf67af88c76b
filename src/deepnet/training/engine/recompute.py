"""Activation recompute, put around the layers of a model from outside: one at a time, or in segments.

What a pass keeps are the states between segments, and what one segment computes once it is computed again. In segments
of about the square root of the depth whose layers are computed again one by one, both grow with that root (Chen et al.,
arXiv 1604.06174, section 4.1), at the price of a second forward pass again.
"""

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from deepnet.training.config import TrainingConfig
from deepnet.training.engine.forwards import Forward, replaced_forwards
from deepnet.transformer.chain import Chain


def recomputing(
    model: nn.Module, training: TrainingConfig, *, blocks: Iterable[nn.Module]
) -> AbstractContextManager[None]:
    """Let a model compute again what the section says, for the length of the context; nothing by default."""
    if not training.recompute:
        return nullcontext()
    if training.recompute_segment == 1:
        return recomputed(blocks)
    return recomputed_segments(list_chains(model), num_layers=training.recompute_segment)


def list_chains(model: nn.Module) -> list[Chain]:
    """Return the chains of layers in a model: what can be computed again in segments."""
    return [module for module in model.modules() if isinstance(module, Chain)]


def recomputed(blocks: Iterable[nn.Module]) -> AbstractContextManager[None]:
    """Make each block compute its activations again in the backward pass, for the length of the context.

    Gradients and dropout masks stay the same, bit for bit.
    """
    return replaced_forwards(blocks, lambda _, forward: partial(_recompute, forward))


def recomputed_segments(
    chains: Iterable[Chain], *, num_layers: int
) -> AbstractContextManager[None]:
    """Make each chain compute segments of so many layers again, bit for bit, for the length of the context.

    With 0 the segments are of about the square root of the depth, and their layers are computed again one by one.
    """
    return replaced_forwards(
        chains,
        lambda chain, _: partial(
            _run, chain.unrolled(), _lengths(len(chain.unrolled()), num_layers)
        ),
        method="run",
    )


def _lengths(depth: int, num_layers: int) -> list[int]:
    """Return the lengths of segments, those of the segments inside them after them."""
    if num_layers:
        return [num_layers]
    return sorted({math.ceil(math.sqrt(depth)), 1}, reverse=True)


def _run(layers: Sequence[nn.Module], lengths: Sequence[int], state: Any, *shared: Any) -> Any:
    """Return the state after the layers, which run in segments of the first of these lengths, and so on within them."""
    if not lengths:
        for layer in layers:
            state = layer(state, *shared)
        return state
    length, *inner = lengths
    for first in range(0, len(layers), length):
        segment = partial(_run, layers[first : first + length], inner)
        state = _recompute_from(segment, state, *shared)
    return state


def _recompute_from(run: Forward, state: Any, *shared: Any) -> Any:
    """Call `run`, which is computed again from the tensors of the state.

    They are handed over one by one: what torch is given inside a tuple it holds itself, even where a segment around
    this one would compute it again.
    """
    tensors, structure = tree_flatten(state)

    def from_tensors(*tensors: Any) -> Any:
        return run(tree_unflatten(tensors, structure), *shared)

    return _recompute(from_tensors, *tensors)


def _recompute(forward: Forward, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=True, **kwargs)
