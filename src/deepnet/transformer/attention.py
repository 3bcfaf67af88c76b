"""Multi-head attention: self and cross, with or without a cache.

Shapes: B batch, T queries, C keys, D model, H heads, K head size.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepnet.schemes.base import Role, Site, SitePlan
from deepnet.transformer.cache import KeyValues
from deepnet.transformer.positions import rotate
from deepnet.transformer.residual import build_norm
from deepnet.transformer.scales import ScaleBuilder


class Attention(nn.Module):
    """Scaled dot-product attention over `num_heads` heads; q, k, v and out are parameters of their own.

    The projections that read the same tensor are carried out as one product, from weights joined on the way.
    """

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
        for role in ("q", "k", "v", "out"):
            self.add_module(role, nn.Linear(d_model, d_model, bias=plan.bias))
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
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=keep,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=causal,
            scale=self.multiplier,
        )
        return self._project_out(y)

    def roles(self) -> Iterator[tuple[Role, nn.Parameter]]:
        """Yield each weight with its role."""
        for role in ("q", "k", "v", "out"):
            yield role, self.get_submodule(role).weight  # type: ignore[misc]

    def _own(
        self, x: Tensor, rotary: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v [B, H, T, K] of `x`, turned by their positions where these are rotary."""
        q, k, v = self._project(x, "q", "k", "v")
        if rotary is not None:
            q, k = rotate(q, rotary), rotate(k, rotary)
        return q, k, v

    def _cross(
        self, x: Tensor, memory: Tensor, cache: KeyValues | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return q [B, H, T, K] of `x`, and k and v [B, H, C, K] of `memory`."""
        (q,) = self._project(x, "q")
        if cache is not None and not cache.empty:
            return q, *cache.get()
        k, v = self._project(memory, "k", "v")
        if cache is not None:
            cache.store(k, v)
        return q, k, v

    def _project(self, x: Tensor, *roles: str) -> tuple[Tensor, ...]:
        """Return the projections [B, H, T, K] of `x` for those roles, from one matrix product."""
        linears = [self.get_submodule(role) for role in roles]
        y = F.linear(x, _join([m.weight for m in linears]), _join([m.bias for m in linears]))
        y = y.view(*x.shape[:2], len(roles), self.num_heads, -1)
        heads = y.permute(2, 0, 3, 1, 4).unbind(0)
        norms = {"q": self.q_norm, "k": self.k_norm, "v": self.v_norm}
        return tuple(
            h if (norm := norms[role]) is None else norm(h)
            for role, h in zip(roles, heads, strict=True)
        )

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


def _join(parts: list[Tensor]) -> Tensor:
    """Return the parts one below the other; None where there are no biases."""
    return parts[0] if len(parts) == 1 or parts[0] is None else torch.cat(parts)
