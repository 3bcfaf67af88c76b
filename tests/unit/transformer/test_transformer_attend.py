"""Our attention for short sentences against torch's, values and gradients."""

import pytest
import torch
import torch.nn.functional as F

from deepnet.transformer import attend as module
from deepnet.transformer.attend import attend
from deepnet.transformer.masks import score_bias


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


SHAPES = {
    "keys": (3, 1, 1, 7),
    "keys_of_each_head": (3, 2, 1, 7),
    "of_all": (1, 1, 5, 7),
    "each": (3, 1, 5, 7),
    "heads": (1, 2, 5, 7),
    "each_of_each_head": (3, 2, 5, 7),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("projected", [True, False])
def test_a_bias_of_any_shape_is_added_and_learns(shape, projected):
    def heads(length):
        """Return heads as projections make them, [B, T, H, K] in memory, or one after the other."""
        x = torch.randn(3, length, 2, 4, dtype=torch.float64).transpose(1, 2)
        return (x if projected else x.contiguous()).requires_grad_()

    q, k, v = heads(5), heads(7), heads(7)
    bias = torch.randn(shape, dtype=torch.float64)
    bias[..., -1] = -torch.inf
    bias.requires_grad_()
    ours = attend(q, k, v, bias=bias, scale=0.3)
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=0.3)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)
    out = torch.randn_like(ours)
    mine = torch.autograd.grad((ours * out).sum(), (q, k, v, bias))
    reference = torch.autograd.grad((theirs * out).sum(), (q, k, v, bias))
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


def test_masked_keys_get_no_weight_in_bf16():
    q, k, v = (torch.randn(4, 2, 24, 16) for _ in range(3))
    keep = torch.rand(4, 1, 1, 24) < 0.7
    exact = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
    bias = score_bias(keep.expand(-1, 2, -1, -1), None, dtype=torch.bfloat16)
    ours = attend(*(x.bfloat16() for x in (q, k, v)), bias=bias)
    assert (ours.float() - exact).abs().max().item() < 0.02  # two steps of bf16 at 2


def test_bf16_is_as_near_to_float32_as_torchs():
    q, k, v = (torch.randn(4, 2, 24, 16) for _ in range(3))
    exact = F.scaled_dot_product_attention(q, k, v)
    low = [x.bfloat16() for x in (q, k, v)]
    ours = (attend(*low).float() - exact).abs().max().item()
    theirs = (F.scaled_dot_product_attention(*low).float() - exact).abs().max().item()
    assert ours < 2 * theirs


@pytest.mark.parametrize(("length", "row"), [(13, 16), (16, 16), (17, 24)])
def test_rows_of_a_mask_begin_at_multiples_of_eight_numbers_off_the_cpu(length, row):
    keep = torch.ones(2, 1, 5, length, dtype=torch.bool)
    there = score_bias(keep.to("meta"), None, dtype=torch.float32)
    assert there.shape == (2, 1, 5, length)
    assert there.stride()[-2:] == (row, 1)
    assert score_bias(keep, None, dtype=torch.float32).stride()[-2:] == (length, 1)
