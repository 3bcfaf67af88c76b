"""Each dropout rate of a recipe acts in its own place, at its own rate, in training alone."""

import math

import pytest
import torch
from torch import nn

from deepnet.transformer.dropout import dropped_sum
from deepnet.transformer.inputs import Inputs

RATES = {"dropout": 0.5, "attention_dropout": 0.25, "activation_dropout": 0.75}
IDENTITY = torch.eye(16, dtype=torch.float64)


def _assert_share(kept: torch.Tensor, rate: float) -> None:
    """Check that a share 1 - rate of independent draws is kept, within 4 standard errors."""
    kept = kept.double()
    error = math.sqrt(rate * (1 - rate) / kept.numel())
    assert kept.mean().item() == pytest.approx(1 - rate, abs=4 * error)


@torch.no_grad()
def _uniform(attention: nn.Module) -> None:
    """Let an attention weigh all keys alike, and put out the sum of what it keeps of their weights."""
    for part in (attention.q, attention.k, attention.v, attention.out):
        part.weight.zero_()
        part.bias.zero_()
    attention.v.bias.fill_(1.0)
    attention.out.weight.copy_(IDENTITY)


@pytest.mark.parametrize("kind", ["self", "cross", "merged"])
def test_attention_weights_are_dropped(make_model, kind):
    model = make_model("ds_init", {"merged": kind == "merged"}, **RATES)
    attention = model.decoder.layers[0].sublayers[kind].branch
    _uniform(attention)
    x, memory = torch.randn(50, 20, 16).double(), torch.randn(50, 24, 16).double()
    inputs = x, Inputs(memory=memory)
    own = 1.0 if kind == "merged" else 0.0  # the mean of values of 1
    keys = 20 if kind == "self" else 24
    torch.testing.assert_close(
        attention.eval()(*inputs), torch.full_like(x, 1.0 + own), rtol=0, atol=1e-12
    )
    # what is kept of a row of weights 1/keys, each divided by 1 - rate; a head's 8 columns are one draw
    kept = (attention.train()(*inputs) - own)[..., [0, 8]] * keys * (1 - RATES["attention_dropout"])
    torch.testing.assert_close(kept, kept.round(), rtol=0, atol=1e-9)
    _assert_share(
        torch.arange(kept.numel() * keys) < kept.sum().round(), RATES["attention_dropout"]
    )
    assert not torch.equal(kept[..., 0], kept[..., 1])  # heads are drawn apart


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_activations_are_dropped(make_model, activation):
    model = make_model("post_ln", activation=activation, **RATES)
    branch = model.encoder.layers[0].sublayers["ffn"].branch
    seen = []
    branch.fc2.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    x = torch.randn(50, 40, 16).double()
    branch.eval()(x)
    branch.train()(x)
    still, dropped = seen
    alive = still != 0
    _assert_share((dropped != 0)[alive], RATES["activation_dropout"])
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], still[kept] / (1 - RATES["activation_dropout"]))


@pytest.mark.parametrize("scheme", ["sub_ln", "normformer"])
def test_activations_are_dropped_before_the_inner_norm(make_model, scheme):
    """As in torchscale's and fairseq's feed-forward: what reaches the second matrix is normed, in training as well."""
    branch = make_model(scheme, **RATES).encoder.layers[0].sublayers["ffn"].branch.train()
    seen = []
    branch.fc2.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    branch.activation_norm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    branch(10 * torch.randn(50, 40, 16).double())
    before, after = seen
    assert (before == 0).double().mean() > 0.8  # half by the activation, three quarters of the rest
    after = after[before.var(-1, correction=0) > 1]  # where a few are left; the norm's eps is 1e-5
    zero, one = torch.zeros(len(after)).double(), torch.ones(len(after)).double()
    assert len(after) > 1000
    torch.testing.assert_close(after.mean(-1), zero, rtol=0, atol=1e-9)
    torch.testing.assert_close(after.var(-1, correction=0), one, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("scheme", "normed"), [("post_ln", False), ("peri_ln", True)])
def test_a_branchs_output_is_dropped_after_its_norm(make_model, scheme, normed):
    site = make_model(scheme, **RATES).encoder.layers[0].sublayers["ffn"].residual
    y = 3 + torch.randn(50, 40, 16).double()
    expected = site.out(y) if normed else y
    torch.testing.assert_close(site.eval().leave(y), expected)
    left = site.train().leave(y)
    kept = left != 0
    _assert_share(kept, RATES["dropout"])
    torch.testing.assert_close(left[kept], (expected / (1 - RATES["dropout"]))[kept])


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_what_enters_a_stack_is_dropped(make_model, positions):
    for stack in make_model("post_ln", positions=positions, **RATES).stacks():
        rows = torch.randn(50, 40, 16).double()
        still = stack.entry.eval()(rows, 0)
        entered = stack.entry.train()(rows, 0)
        kept = entered != 0
        _assert_share(kept, RATES["dropout"])
        torch.testing.assert_close(entered[kept], still[kept] / (1 - RATES["dropout"]))


@pytest.mark.parametrize("rate", RATES)
def test_no_rate_acts_in_evaluation_and_each_alone_acts_in_training(make_model, sentences, rate):
    model = make_model("post_ln", **{rate: 0.5})
    torch.testing.assert_close(model.eval()(*sentences), model(*sentences), rtol=0, atol=0)
    still = model(*sentences)
    assert not torch.allclose(model.train()(*sentences), still)


@pytest.mark.parametrize("branch_scale", [0.25, 1.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_dropped_branch_is_scaled_and_added_in_one_type_or_two(branch_scale, dtype):
    skip, y = torch.randn(20, 50, dtype=torch.float64), 3 + torch.rand(20, 50, dtype=dtype)
    total = dropped_sum(skip, y, 0.5, skip_scale=0.7, branch_scale=branch_scale)
    branch = total - 0.7 * skip
    kept = branch.abs() > 1e-6
    _assert_share(kept, 0.5)
    torch.testing.assert_close(branch[kept], (2 * branch_scale * y.double())[kept])
