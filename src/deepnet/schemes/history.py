"""Sums over what all earlier sites or layers returned, for streams whose state is a tuple of outputs.

One layer's stack of outputs grows with its depth, so that all layers' together would be memory in the square of it. The
outputs themselves are kept once, by the state; a stack lives no longer than what is computed of it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from deepnet.schemes.base import ResidualSite, Stream

History = tuple[Tensor, ...]
"""Outputs [B, T, D], the earliest first; a state of this kind grows, so that every layer is handed one more."""


def combined(combine: Callable[..., Tensor], outputs: Sequence[Tensor], *others: Tensor) -> Tensor:
    """Return combine(outputs [J, B, T, D], *others), in float32 at least, as a tensor of the outputs' type.

    The backward pass computes it again instead of keeping the stack; `combine` draws no random numbers.
    """

    def compute(*tensors: Tensor) -> Tensor:
        stacked = torch.stack(tensors[: len(outputs)])
        wide = torch.promote_types(stacked.dtype, torch.float32)
        with torch.autocast(stacked.device.type, enabled=False):  # it would round the outputs
            result = combine(stacked.to(wide), *(t.to(wide) for t in tensors[len(outputs) :]))
        return result.to(stacked.dtype)

    if not torch.is_grad_enabled():
        return compute(*outputs, *others)
    result: Tensor = checkpoint(
        compute, *outputs, *others, use_reentrant=False, preserve_rng_state=False
    )
    return result


def weighted_sum(outputs: Tensor, weights: Tensor) -> Tensor:
    """Return sum_j weights[j] * outputs[j], [B, T, D], of `weights` [J] or [J, B, T]."""
    if weights.dim() == 1:
        return torch.einsum("j,jbtd->btd", weights, outputs)
    return torch.einsum("jbt,jbtd->btd", weights, outputs)


class Outputs(Stream):
    """The state is the stream, then X_0 and the output of each layer; an extra module of that name mixes these."""

    def __init__(self, mixer: str) -> None:
        self.mixer = mixer

    def open(self, x: Tensor) -> History:
        """Return the embedded input as stream and as X_0."""
        return x, x

    def read(self, state: History, site: ResidualSite) -> tuple[Tensor, Tensor]:
        """Return the site's input and skip, from the stream."""
        return site.enter(state[0])

    def write(self, state: History, carry: Tensor, site: ResidualSite, y: Tensor) -> History:
        """Return the stream after the site, which ends a layer's output and may be mixed, and the outputs so far."""
        x, outputs = site(carry, y), state[1:]
        if site.site.last_in_layer:
            outputs = (*outputs, x)
        if self.mixer in site.extra:
            x = site.extra[self.mixer](outputs)
        return (x, *outputs)

    def close(self, state: History, ends: Any) -> Tensor:
        """Return what the ends make of the stream."""
        return super().close(state[0], ends)

    def peek(self, state: History) -> Tensor:
        """Return the stream."""
        return state[0]
