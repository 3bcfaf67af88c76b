"""Multi-head attention: self, cross and merged, each saying what it reads and what it caches.

Shapes: B batch, T queries, C keys, D model, H heads, G heads of keys and values, K head size.
"""

import torch
from torch import Tensor, nn

from deepnet.schemes.base import Role, Site, SitePlan
from deepnet.transformer.attend import attend
from deepnet.transformer.cache import LayerCache
from deepnet.transformer.grouped_query import share_heads
from deepnet.transformer.inputs import NOTHING, Inputs
from deepnet.transformer.positions.rotary import rotate_both
from deepnet.transformer.residual import build_norm
from deepnet.transformer.scales import ScaleBuilder


class Attention(nn.Module):
    """Projections, heads and roles that every attention has; q, k, v and out are parameters of their own."""

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int,
        plan: SitePlan,
        site: Site,
        dropout: float,
        scales: ScaleBuilder,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_size = d_model // num_heads
        self.dropout = dropout
        self.multiplier = plan.attention_multiplier
        kv_dim = num_kv_heads * self.head_size
        self.q = nn.Linear(d_model, d_model, bias=plan.bias)
        self.k = nn.Linear(d_model, kv_dim, bias=plan.bias)
        has_own = plan.values != "given"
        self.v = nn.Linear(d_model, kv_dim, bias=plan.bias) if has_own else None
        self.out = nn.Linear(d_model, d_model, bias=plan.bias)
        norms = plan.inner_norms
        self.q_norm = build_norm(norms.get("q"), self.head_size)
        self.k_norm = build_norm(norms.get("k"), self.head_size)
        self.v_norm = build_norm(norms.get("v"), self.head_size)
        self.heads_norm = build_norm(norms.get("heads"), d_model)
        self.head_scale = (
            scales.make(plan.head_scale, width=num_heads, site=site, use="heads")
            if plan.head_scale
            else None
        )

    def roles(self) -> dict[Role, nn.Linear]:
        """Return the linear map of each role, the one that returns the branch's output last."""
        v: dict[Role, nn.Linear] = {} if self.v is None else {"v": self.v}
        return {"q": self.q, "k": self.k, **v, "out": self.out}

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        keep: Tensor | None,
        causal: bool = False,
        bias: Tensor | None,
    ) -> Tensor:
        """Return what queries [B, H, T, K] take from values [B, G, C, K], with this attention's dropout and scale."""
        dropout = self.dropout if self.training else 0.0
        return attend(
            q, k, v, keep=keep, causal=causal, bias=bias, dropout=dropout, scale=self.multiplier
        )

    def _keys_and_values(self, source: Tensor, values: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return keys and values [B, G, C, K] of `source` [B, C, D]; values are `values` [B, C, G * K] where given."""
        k = self._heads(self.k(source), self.k_norm)
        return k, self._heads(self._project(source) if values is None else values, self.v_norm)

    def _project(self, source: Tensor) -> Tensor:
        """Return the attention's own values [B, C, G * K] of `source` [B, C, D]."""
        assert self.v is not None, "an attention whose values are given has no projection of them"
        projected: Tensor = self.v(source)
        return projected

    def _read_memory(self, inputs: Inputs, cache: LayerCache | None) -> tuple[Tensor, Tensor]:
        """Return keys and values [B, G, C, K] of the memory, computed in the first call only where there is a cache."""
        if cache is not None and not cache.memory.empty:
            return cache.memory.get()
        assert inputs.memory is not None
        k, v = self._keys_and_values(inputs.memory, inputs.values)
        if cache is not None:
            cache.memory.store(k, v)
        return k, v

    def _heads(self, y: Tensor, norm: nn.Module | None) -> Tensor:
        """Return a projection [B, T, H * K] as heads [B, H, T, K], normed where that is planned, of the type of `y`."""
        heads = y.view(*y.shape[:2], -1, self.head_size).transpose(1, 2)
        return heads if norm is None else norm(heads).to(heads.dtype)

    def _project_out(self, y: Tensor) -> Tensor:
        """Return [B, T, D] from the heads' outputs [B, H, T, K]."""
        y = y.transpose(1, 2)
        if isinstance(self.head_scale, nn.Module):
            y = self.head_scale(y.transpose(2, 3)).transpose(2, 3)
        y = y.flatten(2)
        if self.heads_norm is not None:
            y = self.heads_norm(y)
        projected: Tensor = self.out(y)
        return projected


class SelfAttention(Attention):
    """Each position attends to those of its own stack."""

    def forward(
        self, x: Tensor, inputs: Inputs = NOTHING, cache: LayerCache | None = None
    ) -> Tensor:
        """Return [B, T, D] from `x` [B, T, D]; with a cache, its keys and values join those of earlier calls.

        What joins are the values that were read, whoever made them.
        """
        q, (k, v) = self._heads(self.q(x), self.q_norm), self._keys_and_values(x, inputs.values)
        if inputs.rotary is not None:
            q, k = rotate_both(q, k, inputs.rotary)
        if cache is not None:
            k, v = cache.own.append(k, v)
        y = self._attend(q, k, v, keep=inputs.keep, causal=inputs.causal, bias=inputs.bias)
        return self._project_out(y)


class CrossAttention(Attention):
    """Each position attends to the memory."""

    def forward(
        self, x: Tensor, inputs: Inputs = NOTHING, cache: LayerCache | None = None
    ) -> Tensor:
        """Return [B, T, D] from `x` [B, T, D]; with a cache, the memory is projected in the first call only."""
        q, (k, v) = self._heads(self.q(x), self.q_norm), self._read_memory(inputs, cache)
        y = self._attend(q, k, v, keep=inputs.memory_keep, bias=inputs.memory_bias)
        return self._project_out(y)


class MergedAttention(Attention):
    """Cross-attention plus the mean of the values so far, through one v and one out (Zhang et al., EMNLP 2019)."""

    def forward(
        self, x: Tensor, inputs: Inputs = NOTHING, cache: LayerCache | None = None
    ) -> Tensor:
        """Return [B, T, D]: `x` [B, T, D] attending to the memory and averaging what precedes it in `x`.

        `inputs.keep` says what each position averages over, by default itself and everything before it.
        """
        q, (k, v) = self._heads(self.q(x), self.q_norm), self._read_memory(inputs, cache)
        own = self._heads(self._project(x), self.v_norm)
        if cache is not None:
            _, own = cache.own.append(own, own)
        y = self._attend(q, k, v, keep=inputs.memory_keep, bias=inputs.memory_bias)
        return self._project_out(
            y + _mean_weights(inputs.keep, x, own) @ share_heads(own, self.num_heads)
        )


def _mean_weights(keep: Tensor | None, x: Tensor, values: Tensor) -> Tensor:
    """Return the rows [.., T, C] that average the kept ones of C values; by default the first C - T + t."""
    if keep is None:
        t, c = x.shape[1], values.shape[2]
        keep = torch.ones(t, c, dtype=torch.bool, device=x.device).tril(c - t)
    weights = keep.to(values.dtype)
    return weights / weights.sum(-1, keepdim=True)
