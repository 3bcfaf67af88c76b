"""Multi-head attention: self and cross, with or without a cache.

Shapes: B batch, T queries, C keys, D model, H heads, K head size.
"""

import torch
from torch import Tensor, nn

from deepnet.schemes.base import Role, Site, SitePlan
from deepnet.transformer.attend import attend
from deepnet.transformer.cache import KeyValues, LayerCache
from deepnet.transformer.positions import rotate
from deepnet.transformer.residual import build_norm
from deepnet.transformer.scales import ScaleBuilder


class Attention(nn.Module):
    """Scaled dot-product attention over `num_heads` heads; q, k, v and out are parameters of their own."""

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        plan: SitePlan,
        site: Site,
        dropout: float,
        scales: ScaleBuilder,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.multiplier = plan.attention_multiplier
        self.q = nn.Linear(d_model, d_model, bias=plan.bias)
        self.k = nn.Linear(d_model, d_model, bias=plan.bias)
        self.v = nn.Linear(d_model, d_model, bias=plan.bias)
        self.out = nn.Linear(d_model, d_model, bias=plan.bias)
        head_size = d_model // num_heads
        norms = plan.inner_norms
        self.q_norm = build_norm(norms.get("q"), head_size)
        self.k_norm = build_norm(norms.get("k"), head_size)
        self.v_norm = build_norm(norms.get("v"), head_size)
        self.heads_norm = build_norm(norms.get("heads"), d_model)
        self.head_scale = (
            scales.make(plan.head_scale, width=num_heads, site=site, use="heads")
            if plan.head_scale
            else None
        )

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        keep: Tensor | None = None,
        causal: bool = False,
        rotary: tuple[Tensor, Tensor] | None = None,
        cache: KeyValues | None = None,
    ) -> Tensor:
        """Return [B, T, D]: `x` [B, T, D] attending to `memory` [B, C, D], or to itself where there is none.

        `keep` [B, 1 or H, 1 or T, C] is True where a query may attend. With a cache, the keys and values of `x` join
        those of earlier calls, and those of `memory` are computed in the first call only.
        """
        if memory is None:
            q, k, v = self._own(x, rotary)
            if cache is not None:
                k, v = cache.append(k, v)
        else:
            q, k, v = self._cross(x, memory, cache)
        y = attend(
            q,
            k,
            v,
            keep=keep,
            causal=causal,
            dropout=self.dropout if self.training else 0.0,
            scale=self.multiplier,
        )
        return self._project_out(y)

    def roles(self) -> dict[Role, nn.Linear]:
        """Return the linear map of each role, the one that returns the branch's output last."""
        return {"q": self.q, "k": self.k, "v": self.v, "out": self.out}

    def _own(
        self, x: Tensor, rotary: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v [B, H, T, K] of `x`, turned by their positions where these are rotary."""
        q, k = self._heads(self.q(x), self.q_norm), self._heads(self.k(x), self.k_norm)
        if rotary is not None:
            q, k = rotate(q, rotary), rotate(k, rotary)
        return q, k, self._heads(self.v(x), self.v_norm)

    def _cross(
        self, x: Tensor, memory: Tensor, cache: KeyValues | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return q [B, H, T, K] of `x`, and k and v [B, H, C, K] of `memory`."""
        q = self._heads(self.q(x), self.q_norm)
        if cache is not None and not cache.empty:
            return q, *cache.get()
        k = self._heads(self.k(memory), self.k_norm)
        v = self._heads(self.v(memory), self.v_norm)
        if cache is not None:
            cache.store(k, v)
        return q, k, v

    def _heads(self, y: Tensor, norm: nn.Module | None) -> Tensor:
        """Return a projection [B, T, D] as heads [B, H, T, K], normed where that is planned, of the type of `y`."""
        heads = y.view(*y.shape[:2], self.num_heads, -1).transpose(1, 2)
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


class MergedAttention(Attention):
    """Cross-attention plus the mean of the values so far, through one v and one out (Zhang et al., EMNLP 2019)."""

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor,
        *,
        keep: Tensor | None = None,
        own_keep: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Return [B, T, D]: `x` [B, T, D] attending to `memory` [B, C, D] and averaging what precedes it in `x`.

        `keep` is as in `Attention`, for the memory; `own_keep` [B, 1, T, T] says what each position averages over, by
        default itself and everything before it.
        """
        q, k, v = self._cross(x, memory, None if cache is None else cache.memory)
        own = self._heads(self.v(x), self.v_norm)
        if cache is not None:
            _, own = cache.own.append(own, own)
        dropout = self.dropout if self.training else 0.0
        y = attend(q, k, v, keep=keep, dropout=dropout, scale=self.multiplier)
        return self._project_out(y + _mean_weights(own_keep, x, own) @ own)


def _mean_weights(keep: Tensor | None, x: Tensor, values: Tensor) -> Tensor:
    """Return the rows [.., T, C] that average the kept ones of C values; by default the first C - T + t."""
    if keep is None:
        t, c = x.shape[1], values.shape[2]
        keep = torch.ones(t, c, dtype=torch.bool, device=x.device).tril(c - t)
    weights = keep.to(values.dtype)
    return weights / weights.sum(-1, keepdim=True)
