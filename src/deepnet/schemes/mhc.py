"""Several streams, mixed by doubly stochastic maps of each token, and merged by a trained head: mHC as shipped.

    X [n, D], n copies of the embedding at first;   m = alpha * (W rms(vec X)) + b, alpha one number per map
    A = sigmoid + eps,   B = 2 sigmoid,   C = 20 Sinkhorn steps, rows sum_k and columns sum_j, of softmax_k + eps
    y = f(LN(sum_j A_j X_j)),   X_k <- sum_j C_jk X_j + B_k y;   output LN(sum_j (sigmoid + eps)_j X_j), maps of its own

Source: Xie et al., mHC, arXiv 2512.24880, as Megatron-LM and DeepSeek-V4 have it, for a decoder; encoders and, per
stack with cross-attention as one more site, encoder-decoders are ours.
Cost: as pre_ln, n streams, and per site a matrix from n D to n (n + 2), n (n + 2) and 3 numbers; per stack one to n.
Differs: nothing from Megatron-LM. b starts at 0, W Xavier uniform and alpha at 0.01 (Hugging Face: W normal, alpha 1),
close to Pre-LN; with zero logits it is Pre-LN up to the norms' eps. hyper_connections with maps = "manifold" is
the paper's in another form: it starts with maps that keep each stream and W = 0, the RMS norm has a gain, there is no
eps, and the streams end in their mean. No map is decayed.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    Change,
    Ends,
    Norm,
    ResidualScheme,
    Site,
    SitePlan,
    StackContext,
    Stream,
    glorot,
)
from deepnet.schemes.hyper_connections import Streams

_EPS = 1e-6
_GATE = 0.01
_SINKHORN_STEPS = 20


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Several streams, mixed by doubly stochastic maps of each token's content, and merged by a trained head."""

    equation: ClassVar[str] = (
        "X_k <- sum_j C_jk X_j + B_k f(LN(sum_j A_j X_j)), C doubly stochastic"
    )
    source: ClassVar[str] = "Xie et al. 2025, arXiv 2512.24880; Megatron-LM, DeepSeek-V4"
    changes: ClassVar[Change] = "stream"
    grew_out_of: ClassVar[tuple[str, ...]] = ("hyper_connections",)

    streams: int = 4
    """Number of streams n."""

    def __post_init__(self) -> None:
        if self.streams < 1:
            raise ConfigError(f"streams is {self.streams}; expected at least 1")

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a pre-norm site with its maps."""
        return SitePlan(
            branch=site.kind,
            pre=context.norm(),
            init=glorot(),
            extra={"maps": lambda: _Maps(self.streams, width=context.d_model)},
        )

    def ends(self, context: StackContext) -> Ends:
        """Return ends with the head that merges the streams."""
        return replace(
            super().ends(context), merge=lambda: _Head(self.streams, width=context.d_model)
        )

    def final_norm(self, context: StackContext) -> Norm:
        """Return the model's own norm."""
        return context.norm()

    def stream(self, context: StackContext) -> Stream:
        """Return the n streams."""
        return _Merged(self.streams)


class _Projection(nn.Module):
    """Numbers of a token from all its streams: gates * (W rms(vec X)) + b, one gate for each group of columns."""

    def __init__(self, streams: int, columns: tuple[int, ...], *, width: int) -> None:
        super().__init__()
        self.columns = columns
        self.weight = nn.Parameter(torch.empty(streams * width, streams * sum(columns)))
        self.table = nn.Parameter(torch.empty(streams, sum(columns)))
        self.gates = nn.Parameter(torch.empty(len(columns)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw what content adds, behind small gates."""
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.table)
        nn.init.constant_(self.gates, _GATE)

    def groups(self, h: Tensor) -> tuple[Tensor, ...]:
        """Return logits [n, B, T, c] for each group of c columns, of the streams `h` [n, B, T, D]; float32 at least."""
        wide = torch.promote_types(h.dtype, torch.float32)
        with torch.autocast(h.device.type, enabled=False):
            x = h.to(wide).permute(1, 2, 0, 3).flatten(2)
            x = x * (x.square().mean(-1, keepdim=True) + _EPS).rsqrt()
            content = (x @ self.weight.to(wide)).view(*x.shape[:2], len(h), -1)
        gates = [gate.expand(c) for gate, c in zip(self.gates, self.columns, strict=True)]
        logits = self.table[:, None, None] + torch.cat(gates) * content.permute(2, 0, 1, 3)
        return torch.split_with_sizes(logits, self.columns, dim=-1)


class _Maps(_Projection):
    """A, B and C side by side."""

    def __init__(self, streams: int, *, width: int) -> None:
        super().__init__(streams, (1, 1, streams), width=width)

    def forward(self, h: Tensor) -> Tensor:
        """Return the maps [n, B, T, 1 + 1 + n] of the streams `h` [n, B, T, D]."""
        read, write, mix = self.groups(h)
        maps = [read.sigmoid() + _EPS, 2.0 * write.sigmoid(), _sinkhorn(mix)]
        return torch.cat(maps, dim=-1).to(h.dtype)


def _sinkhorn(logits: Tensor) -> Tensor:
    """Return a nearly doubly stochastic [j, B, T, k]; the last step makes the sums over j 1."""
    matrix = logits.softmax(-1) + _EPS
    matrix = matrix / (matrix.sum(0, keepdim=True) + _EPS)
    for _ in range(_SINKHORN_STEPS - 1):
        matrix = matrix / (matrix.sum(-1, keepdim=True) + _EPS)
        matrix = matrix / (matrix.sum(0, keepdim=True) + _EPS)
    return matrix


class _Head(_Projection):
    """The weights with which the streams end in one."""

    def __init__(self, streams: int, *, width: int) -> None:
        super().__init__(streams, (1,), width=width)

    def forward(self, h: Tensor) -> Tensor:
        """Return [B, T, D] of the streams `h` [n, B, T, D]."""
        (weights,) = self.groups(h)
        return ((weights.sigmoid() + _EPS).to(h.dtype) * h).sum(0)


class _Merged(Streams):
    """Streams of which the ends make one."""

    def close(self, state: Tensor, ends: Any) -> Tensor:
        output: Tensor = ends(state)
        return output
