"""What the layers of a stack read besides its state: said by the model, laid out once for all of them."""

from typing import NamedTuple

import torch
from torch import Tensor

from deepnet.transformer.masks import past_keep, per_head, score_bias
from deepnet.transformer.positions.base import InAttention


class Inputs(NamedTuple):
    """What every layer of a stack reads besides its state; branches take what they need of it."""

    keep: Tensor | None = None
    """[B, 1, 1 or T, C], True where a query may attend to an earlier or later token of its own stack."""
    causal: bool = False
    """Whether all that hides anything is that the future is hidden."""
    memory: Tensor | None = None
    """The encoder's output [B, S, D]."""
    memory_keep: Tensor | None = None
    """[B, 1, 1, S], True where a query may attend to the memory."""
    rotary: tuple[Tensor, Tensor] | None = None
    """Cosines and sines [T, K] by which self-attention turns queries and keys."""
    bias: Tensor | None = None
    """What self-attention adds to its scores, [B, 1 or H, 1 or T, C]: `keep` or `causal`, and what positions say."""
    memory_bias: Tensor | None = None
    """What cross-attention adds to its scores, [B, 1 or H, 1, S]."""
    ids: Tensor | None = None
    """The stack's own tokens [B, T]."""
    values: Tensor | None = None
    """What one attention reads in place of the values that it projects, [B, C, G * K]; it is no other's."""

    def laid_out(self, x: Tensor, positions: InAttention, *, num_heads: int) -> "Inputs":
        """Return these inputs with what each attention of a stack would else compute, from the first `x` [B, T, D].

        All of it has the type of the queries. A causal mask stays a flag for the kernels that know it, and becomes a
        bias where one is added to it, or on a CPU, where the fastest way may need it.
        """
        dtype, rotary = query_type(x), positions.rotary
        keep, flag_does = self.keep, positions.bias is None and x.device.type != "cpu"
        if self.causal and not flag_does:
            keep = past_keep(x.shape[1], x.device)
        return self._replace(
            causal=self.causal and positions.bias is None,
            rotary=None if rotary is None else (rotary[0].to(dtype), rotary[1].to(dtype)),
            bias=per_head(score_bias(keep, positions.bias, dtype=dtype), num_heads),
            memory_bias=per_head(score_bias(self.memory_keep, None, dtype=dtype), num_heads),
        )


NOTHING = Inputs()
"""The inputs of a branch that stands alone."""


def query_type(x: Tensor) -> torch.dtype:
    """Return the type that a projection of `x` has: autocast's, which leaves float64 alone, or its own."""
    kind = x.device.type
    is_cast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if is_cast and x.dtype != torch.float64 else x.dtype
