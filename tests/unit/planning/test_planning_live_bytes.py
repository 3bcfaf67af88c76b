"""Bytes of tensors that come and go, and products counted, against what shapes say."""

import torch
import torch.nn.functional as F
from torch import nn

from deepnet.planning.live_bytes import UNCLAIMED, LiveBytes


def test_bytes_are_held_from_when_a_tensor_is_made_to_when_its_last_view_is_gone():
    x = torch.zeros(1000)
    with LiveBytes() as live:
        y = x * 2
        assert live.held[UNCLAIMED] == 4000
        view = y.view(10, 100)[3]
        del y
        assert live.held[UNCLAIMED] == 4000
        z = view.double().mul_(2)
        del view
        assert live.held[UNCLAIMED] == 100 * 8
        del z
    assert live.held.total() == 0
    assert live.most.total() == 4000 + 800


def test_what_is_claimed_is_of_its_kind_and_counted_once():
    weight = torch.ones(10, 10, requires_grad=True)
    live = LiveBytes()
    live.claim([weight], "weights")
    with live:
        (weight.T * 3).sum().backward()
        live.claim([weight.grad], "gradients")
    assert live.held == {"weights": 400, "gradients": 400, UNCLAIMED: 0}


def test_what_the_backward_pass_needs_is_held_until_then():
    """autograd says itself what it keeps: every storage once, weights and the input not among them."""
    layers = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 1))
    x, kept = torch.randn(5, 8), {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    live = LiveBytes()
    live.claim([*layers.parameters(), x], "there before")
    with live, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = layers(x).sum()
        held = live.held[UNCLAIMED]
    before = {tensor.untyped_storage().data_ptr() for tensor in (*layers.parameters(), x)}
    saved = sum(size for place, size in kept.items() if place not in before)
    assert held == saved + loss.untyped_storage().nbytes()


def test_products_count_two_operations_for_each_pair_of_numbers():
    a, b = torch.ones(3, 5), torch.ones(5, 7)
    q, k = torch.ones(2, 4, 32, 8), torch.ones(2, 4, 48, 8)
    with LiveBytes() as live:
        a @ b
        assert live.flops == {"weights": 2 * 3 * 5 * 7}
        F.scaled_dot_product_attention(q, k, k)
    assert live.flops["attention"] == 2 * (2 * 2 * 4 * 32 * 48 * 8)
