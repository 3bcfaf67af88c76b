"""Grouped-query attention: H heads of queries read G heads of keys and values, H / G neighbours the same one.

Narrow keys and values compute what full ones do whose every head is repeated. As those they are drawn, and as those
the theory measures them, so that a scheme's gain means what it does where every head has keys of its own.

Source: Ainslie et al., GQA, arXiv 2305.13245; with one head of keys it is Shazeer's, arXiv 1911.02150.
"""

import math

from torch import Tensor

from deepnet.schemes.base import Init, Role


def share_heads(x: Tensor, num_heads: int) -> Tensor:
    """Return keys or values [B, G, C, K] as [B, H, C, K], each head as often as it is read."""
    times = num_heads // x.shape[1]
    return x if times == 1 else x.repeat_interleave(times, 1)


def full_matrix(weight: Tensor, *, num_heads: int, head_size: int) -> Tensor:
    """Return the full matrix [H * K, D] that a narrow one [G * K, D] of keys or values stands for."""
    times = num_heads * head_size // len(weight)
    if times == 1:
        return weight
    heads = weight.view(-1, head_size, weight.shape[1])
    return heads.repeat_interleave(times, 0).flatten(0, 1)


def full_draw(init: Init, role: Role, matrix: Tensor, *, rows: int | None = None) -> Init:
    """Return the draw of a matrix; keys and values narrower than queries get the std of full ones.

    `rows` has the queries' matrix, by default as many as columns.
    """
    fan_out, fan_in = matrix.shape
    rows = fan_in if rows is None else rows
    if role in ("k", "v") and init.kind in ("xavier_normal", "xavier_uniform") and fan_out < rows:
        std = init.std(fan_in, rows)
        limit = std * math.sqrt(3.0)
        return Init("normal", std) if init.kind == "xavier_normal" else Init("uniform", limit)
    return init
