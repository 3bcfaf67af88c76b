"""Several streams: each branch reads a trained mix of them and writes to each with a trained weight.

    H [n, D], n copies of the embedding at first;   y = f(LN(A_m^T H)),   H <- A_r^T H + B^T y;   output LN(mean of H)
    static:   A_m, A_r and B are parameters; they start at e_(site mod n), I and 1, which is Pre-LN n times over
    dynamic:  each plus a gate of 0.01 times tanh(norm(H) W), W = 0 at the start
    manifold: A_m = sigmoid, B = 2 sigmoid, A_r = 20 Sinkhorn steps, of b + gate * RMSNorm(vec H) W (mHC)

Source: Zhu et al., Hyper-Connections, arXiv 2409.19606, equations 1 to 13, for language and vision models; Xie et al.,
mHC, arXiv 2512.24880. In an encoder-decoder, where cross-attention is one more site: ours.
Cost: as pre_ln, n streams, n (n + 2) numbers per site and a matrix to n + 2 (mHC: from n D to n (n + 2)) where dynamic.
Differs: the mean of the streams instead of their sum, so that the final norm's eps acts as in Pre-LN. mHC starts at
A_m and A_r of 0.9 where the static maps have 1, the rest shared out: Pre-LN as well, as all streams are equal then.
No map is decayed. The form of mHC that is shipped (Megatron-LM, DeepSeek-V4) is the scheme mhc.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    Change,
    Norm,
    ResidualScheme,
    ResidualSite,
    Site,
    SitePlan,
    StackContext,
    Stream,
    glorot,
)

_GATE = 0.01
_SINKHORN_STEPS = 20
_KEPT = 0.9  # what the stream that is read, or a stream itself, weighs in mHC's first maps


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Several streams that each branch reads and writes with trained weights; starts as Pre-LN."""

    equation: ClassVar[str] = "H <- A_r^T H + B^T f(LN(A_m^T H)), H of n streams"
    source: ClassVar[str] = "Zhu et al. 2024, arXiv 2409.19606"
    changes: ClassVar[Change] = "stream"
    grew_out_of: ClassVar[tuple[str, ...]] = ("pre_ln",)

    streams: int = 4
    """Number of streams n."""
    maps: Literal["static", "dynamic", "manifold"] = "dynamic"
    """Maps that are parameters, that depend on the token as well, or that are constrained besides (mHC)."""

    def __post_init__(self) -> None:
        fewest = 2 if self.maps == "manifold" else 1
        if self.streams < fewest:
            raise ConfigError(f"streams is {self.streams}; expected at least {fewest}")

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a pre-norm site with its maps."""
        return SitePlan(
            branch=site.kind,
            pre=context.norm(),
            init=glorot(),
            extra={"maps": lambda: self._maps(context, (site.index - 1) % self.streams)},
        )

    def final_norm(self, context: StackContext) -> Norm:
        """Return the model's own norm."""
        return context.norm()

    def stream(self, context: StackContext) -> Stream:
        """Return the n streams."""
        return Streams(self.streams)

    def _maps(self, context: StackContext, read: int) -> nn.Module:
        if self.maps == "manifold":
            return _ManifoldMaps(self.streams, read, width=context.d_model)
        static = _StaticMaps(self.streams, read)
        if self.maps == "static":
            return static
        return _DynamicMaps(static, context.make_norm(context.d_model), width=context.d_model)


class _StaticMaps(nn.Module):
    """A_m, B and A_r side by side, [n, 1 + 1 + n]."""

    def __init__(self, streams: int, read: int) -> None:
        super().__init__()
        self.read = read
        self.table = nn.Parameter(torch.empty(streams, streams + 2))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Read one stream, write to all, mix none."""
        one_hot = torch.eye(len(self.table))
        self.table.copy_(
            torch.cat([one_hot[:, [self.read]], torch.ones(len(one_hot), 1), one_hot], 1)
        )

    def forward(self, h: Tensor) -> Tensor:
        """Return the maps [n, 1, 1, n + 2] whatever the streams `h` [n, B, T, D] are."""
        table: Tensor = self.table[:, None, None]
        return table


class _DynamicMaps(nn.Module):
    """Static maps and what each stream's own content adds to its rows."""

    def __init__(self, static: _StaticMaps, norm: nn.Module, *, width: int) -> None:
        super().__init__()
        self.static = static
        self.norm = norm
        streams = len(static.table)
        self.weight = nn.Parameter(torch.empty(width, streams + 2))
        self.read_and_mix_gate = nn.Parameter(torch.empty(1))
        self.write_gate = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Let content add nothing, through small gates."""
        nn.init.zeros_(self.weight)
        nn.init.constant_(self.read_and_mix_gate, _GATE)
        nn.init.constant_(self.write_gate, _GATE)

    def forward(self, h: Tensor) -> Tensor:
        """Return the maps [n, B, T, n + 2] of the streams `h` [n, B, T, D]."""
        a, b = self.read_and_mix_gate, self.write_gate
        gates = torch.cat([a, b, a.expand(len(h))])
        maps: Tensor = self.static(h) + gates * torch.tanh(self.norm(h) @ self.weight)
        return maps


class _ManifoldMaps(nn.Module):
    """Maps of positive numbers, those between streams with rows and columns that sum to 1."""

    def __init__(self, streams: int, read: int, *, width: int) -> None:
        super().__init__()
        self.read = read
        self.table = nn.Parameter(torch.empty(streams, streams + 2))
        self.norm = nn.RMSNorm(streams * width)
        self.weight = nn.Parameter(torch.empty(streams * width, streams * (streams + 2)))
        self.gates = nn.Parameter(torch.empty(3))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Keep most of each stream, whatever the content is, through small gates."""
        streams = len(self.table)
        shared = (1.0 - _KEPT) / (streams - 1)
        start = shared + (_KEPT - shared) * torch.eye(streams)
        logits = [torch.logit(start[:, [self.read]]), torch.zeros(streams, 1), start.log()]
        self.table.copy_(torch.cat(logits, dim=1))
        nn.init.zeros_(self.weight)
        nn.init.constant_(self.gates, _GATE)

    def forward(self, h: Tensor) -> Tensor:
        """Return the maps [n, B, T, n + 2] of the streams `h` [n, B, T, D]."""
        n = len(h)
        gates = torch.cat([self.gates[:2], self.gates[2:].expand(n)])
        content = self.norm(h.permute(1, 2, 0, 3).flatten(2)) @ self.weight
        content = content.unflatten(-1, (n, n + 2)).permute(2, 0, 1, 3)
        read, write, mix = (self.table[:, None, None] + gates * content).split([1, 1, n], dim=-1)
        return torch.cat([read.sigmoid(), 2.0 * write.sigmoid(), _sinkhorn(mix)], dim=-1)


def _sinkhorn(logits: Tensor) -> Tensor:
    """Return the doubly stochastic matrices [n, B, T, n] that the exponentials [n, B, T, n] tend to."""
    matrix = (logits - logits.amax((0, -1), keepdim=True)).exp()
    for _ in range(_SINKHORN_STEPS):
        matrix = matrix / matrix.sum(-1, keepdim=True)
        matrix = matrix / matrix.sum(0, keepdim=True)
    return matrix


class Streams(Stream):
    """The state is the streams, [n, B, T, D]."""

    def __init__(self, streams: int) -> None:
        self.streams = streams

    def open(self, x: Tensor) -> Tensor:
        """Return n copies of the embedded input."""
        return torch.stack([x] * self.streams)

    def read(self, state: Tensor, site: ResidualSite) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the branch's input, and the mixed streams with the weights of writing to them."""
        n = self.streams
        read, write, mix = site.extra["maps"](state).split([1, 1, n], dim=-1)
        entered, _ = site.enter((read * state).sum(0))
        with torch.autocast(state.device.type, enabled=False):  # it would round the streams
            mixed = torch.einsum("ibtj,ibtd->jbtd", mix.expand(*state.shape[:3], n), state)
        return entered, (mixed, write)

    def write(
        self, state: Tensor, carry: tuple[Tensor, Tensor], site: ResidualSite, y: Tensor
    ) -> Tensor:
        """Return the mixed streams, each with its part of the branch's output."""
        mixed, write = carry
        return mixed + write * site.leave(y)

    def close(self, state: Tensor, ends: Any) -> Tensor:
        """Return what the ends make of the mean of the streams."""
        return super().close(state.mean(0), ends)

    def peek(self, state: Tensor) -> Tensor:
        """Return the mean of the streams."""
        return state.mean(0)
