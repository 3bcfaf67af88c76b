"""Our attention for short sentences against torch's, values and gradients."""

import pytest
import torch
import torch.nn.functional as F

from deepnet.transformer import attend as module
from deepnet.transformer.attend import attend


@pytest.mark.parametrize("mask", ["none", "keys", "each", "causal"])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_it_equals_torchs(mask, scale):
    q, k, v = (torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    keep = None
    if mask == "keys":
        keep = torch.tensor([[True] * 5, [True, True, False, False, False]])[:, None, None]
    elif mask == "each":
        keep = torch.rand(2, 1, 5, 5) < 0.7
        keep[..., 0] = True
    causal = mask == "causal"
    ours = attend(q, k, v, keep=keep, causal=causal, scale=scale)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, is_causal=causal, scale=scale)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)
    out = torch.randn_like(ours)
    mine = torch.autograd.grad((ours * out).sum(), (q, k, v))
    reference = torch.autograd.grad((theirs * out).sum(), (q, k, v))
    for a, b in zip(mine, reference, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)


def test_fewer_keys_than_queries_and_the_reverse():
    for t, c in ((1, 7), (6, 2)):
        q, k, v = torch.randn(2, 3, t, 4), torch.randn(2, 3, c, 4), torch.randn(2, 3, c, 4)
        torch.testing.assert_close(attend(q, k, v), F.scaled_dot_product_attention(q, k, v))


def test_each_length_goes_where_it_is_faster(monkeypatch):
    monkeypatch.setattr(module._ProductAttention, "apply", None)  # calling it raises
    for length, dtype in ((64, torch.float32), (16, torch.float32), (512, torch.bfloat16)):
        x = torch.randn(1, 1, length, 4, dtype=dtype)
        assert attend(x, x, x).shape == x.shape
    for length, dtype in ((11, torch.float32), (64, torch.bfloat16)):
        x = torch.randn(1, 1, length, 4, dtype=dtype)
        with pytest.raises(TypeError):
            attend(x, x, x)


def test_bf16_is_as_near_to_float32_as_torchs():
    q, k, v = (torch.randn(4, 2, 24, 16) for _ in range(3))
    exact = F.scaled_dot_product_attention(q, k, v)
    low = [x.bfloat16() for x in (q, k, v)]
    ours = (attend(*low).float() - exact).abs().max().item()
    theirs = (F.scaled_dot_product_attention(*low).float() - exact).abs().max().item()
    assert ours < 2 * theirs
