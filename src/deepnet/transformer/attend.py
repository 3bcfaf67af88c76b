"""Scaled dot-product attention: torch's, or on a CPU three batched products where torch's kernel is the slower."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from deepnet.transformer.grouped_query import share_heads
from deepnet.transformer.masks import past_keep, score_bias

_LANES = 16
"""Numbers a vector register holds: torch's CPU kernel takes what is left over at the end of a row one by one."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    keep: Tensor | None = None,
    causal: bool = False,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Return softmax(scale * q k^T + bias) v, [B, H, T, K], for queries [B, H, T, K], keys and values [B, G, C, K].

    `keep` [B, 1 or H, 1 or T, C] is True where a query may attend. `bias`, of the same shapes, carries `keep` or
    `causal` out and may say more; without it, it is computed here. `scale` is by default K^(-1/2).
    """
    if bias is not None:
        bias = bias.to(q.dtype)
    if dropout > 0.0 or not _products_pay(k):
        mask = None if causal else keep if bias is None else bias
        return _by_torch(q, k, v, mask, is_causal=causal, dropout=dropout, scale=scale)
    if bias is None:
        keep = past_keep(q.shape[2], q.device) if causal else keep
        bias = score_bias(keep, None, dtype=q.dtype)
    k, v = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])
    scale = 1.0 / math.sqrt(q.shape[3]) if scale is None else scale
    attended: Tensor = _ProductAttention.apply(q, k, v, bias, scale)  # type: ignore[no-untyped-call]
    return attended


def _by_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    is_causal: bool,
    dropout: float,
    scale: float | None,
) -> Tensor:
    """Return the attention of torch's function; of its kernels only flash takes fewer heads of keys as they are."""
    is_flash = q.is_cuda and mask is None and q.dtype in (torch.float16, torch.bfloat16)
    if not is_flash:
        k, v = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=is_flash,  # whether there are fewer may be a symbol to a compiler
    )


class _ProductAttention(torch.autograd.Function):
    """Attention as three batched products; scores lie [.., C, T], so that the softmax runs over whole rows of T."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float
    ) -> Tensor:
        batch, heads, length, size = q.shape
        # where nothing learns each is copied by itself: an audit could not tell the parts of one copy apart
        given = _together(q, k, v) if any(ctx.needs_input_grad) else (q, k, v)
        q, k, v = (x.reshape(batch * heads, -1, size) for x in given)
        weights = _scores(q, k, bias, scale, (batch, heads)).softmax(1)
        ctx.save_for_backward(q, k, v, weights)
        ctx.scale, ctx.bias_shape = scale, None if bias is None else bias.shape
        return torch.bmm(weights.transpose(1, 2), v).view(batch, heads, length, size)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights = ctx.saved_tensors
        shape = gradients[0].shape
        g = gradients[0].reshape(q.shape)
        g_weights = torch.bmm(v, g.transpose(1, 2))
        g_scores = torch._softmax_backward_data(g_weights, weights, 1, weights.dtype)
        g_bias = None
        if ctx.needs_input_grad[3]:
            each = g_scores.view(*shape[:2], -1, shape[2]).transpose(-1, -2)
            g_bias = each.sum_to_size(ctx.bias_shape)
        grads = (
            _scaled_product(g_scores.transpose(1, 2), k, ctx.scale),
            _scaled_product(g_scores, q, ctx.scale),
            torch.bmm(weights, g),
        )
        # [B, T, H, K] in memory, as the projections want them that they go to
        back = _together(*(x.view(*shape[:2], -1, shape[3]).transpose(1, 2) for x in grads))
        return *(x.transpose(1, 2) for x in back), g_bias, None


def _scores(
    q: Tensor, k: Tensor, bias: Tensor | None, scale: float, outer: tuple[int, int]
) -> Tensor:
    """Return scale * k q^T + bias, [B * H, C, T], of queries [B * H, T, K] and keys [B * H, C, K]; `outer` is (B, H).

    The product starts from the bias where there is one for every head of the batch, or one for them all.
    """
    if bias is None:
        return _scaled_product(k, q.transpose(1, 2), scale)
    bias = bias.transpose(-1, -2)
    if tuple(bias.shape[:2]) in (outer, (1, 1)):
        return torch.baddbmm(bias.flatten(0, 1), k, q.transpose(1, 2), alpha=scale)
    scores = _scaled_product(k, q.transpose(1, 2), scale)
    scores.view(*outer, *scores.shape[1:]).add_(bias)
    return scores


def _scaled_product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return scale * a b for every matrix of a batch, in one operation."""
    return torch.baddbmm(a.new_empty(1, 1, 1), a, b, beta=0, alpha=scale)


def _together(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Return the three; those of one shape, if none is contiguous, as copies that one operation makes."""
    return _stacked(q, k, v) if q.shape == k.shape else (q, *_stacked(k, v))


def _stacked(*tensors: Tensor) -> tuple[Tensor, ...]:
    if any(x.is_contiguous() for x in tensors):
        return tensors
    return torch.stack(tensors).unbind()


def _products_pay(k: Tensor) -> bool:
    """Return whether three products are faster than torch's kernel, as measured for keys [B, H, C, K].

    In bf16 2 to 12 times for 6 to 64 keys. In float32 1.1 to 2 times up to 32 keys, unless they fill whole registers.
    """
    if k.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    num_keys = k.shape[2]
    if k.dtype == torch.bfloat16:
        return num_keys <= 16 * _LANES
    return num_keys <= 2 * _LANES and num_keys % _LANES != 0
