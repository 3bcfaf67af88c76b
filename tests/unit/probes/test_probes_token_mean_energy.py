"""The mean token against what varies around it: closed forms, padding, order of axes, and records of infinity."""

import json
import math

import pytest
import torch
from by_hand import lengths

from deepnet import TokenMeanEnergy
from deepnet.probes.place import Place
from deepnet.probes.recorder import Recorder
from deepnet.probes.token_mean_energy import token_mean_energies


def rho(u, real=None):
    mean, varying = token_mean_energies(u, real)
    return float(mean / varying)


@pytest.mark.parametrize("length", [2, 5, 17])
def test_independent_tokens(length):
    u = torch.randn(4, length, 20_000, dtype=torch.float64)
    assert rho(u) == pytest.approx((length - 1) ** -0.5, rel=0.01)


def test_the_definition():
    """Two tokens at 3 and 1 on one axis: |M| = 2 sqrt(2), |V| = sqrt(2)."""
    u = torch.tensor([[[3.0], [1.0]]], dtype=torch.float64)
    found = token_mean_energies(u)
    assert found.mean.item() == pytest.approx(2 * math.sqrt(2), rel=1e-14)
    assert found.varying.item() == pytest.approx(math.sqrt(2), rel=1e-14)


def test_means_over_sentences_are_taken_before_the_quotient():
    u = torch.randn(3, 6, 8, dtype=torch.float64) + torch.arange(3.0)[:, None, None]
    mean, varying = lengths(u)
    assert rho(u) == pytest.approx(mean / varying, rel=1e-12)
    apart = [rho(sentence[None]) for sentence in u]
    assert abs(rho(u) - sum(apart) / 3) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tokens_that_are_all_the_same_vary_by_exactly_nothing(dtype):
    """Seven times 0.1 is not 0.7 in either type: a mean that is taken plainly leaves its rounding."""
    u = torch.full((2, 7, 3), 0.1, dtype=dtype)
    u[1] = torch.randn(3, dtype=dtype)
    real = torch.tensor([[False] * 2 + [True] * 5, [True] * 7])
    u[0, :2] = 5.0
    found = token_mean_energies(u, real)
    assert found.varying.item() == 0.0
    expected = math.sqrt(5 * 3) * 0.1 + math.sqrt(7) * float(u[1, 0].norm())
    assert found.mean.item() == pytest.approx(expected, rel=1e-6)


def test_a_sentence_of_padding_alone_counts_nothing():
    u = torch.randn(2, 4, 3, dtype=torch.float64)
    real = torch.tensor([[True, True, False, False], [False] * 4])
    assert rho(u, real) == pytest.approx(rho(u[:1, :2]), rel=1e-12)


@torch.no_grad()
def test_padding_is_left_out(make_model):
    """Two sentences alone, and together with padding."""
    model = make_model(positions="rotary", decoder_layers=3)
    sources = [torch.randint(2, 29, (1, n)) for n in (3, 6)]
    targets = [torch.tensor([[29, *range(5, 5 + n)]]) for n in (4, 1)]
    source, target = torch.full((2, 6), 29), torch.full((2, 5), 29)
    source[0, :3], source[1] = sources[0], sources[1]
    target[0], target[1, :2] = targets[0], targets[1]
    with TokenMeanEnergy(model) as together:
        model(source, source != 29, target)
    with TokenMeanEnergy(model) as alone:  # sums over calls are sums over sentences
        for s, t in zip(sources, targets, strict=True):
            model(s, None, t)
    expected = alone.readings()
    assert together.readings() == pytest.approx(expected, rel=1e-9)
    assert {place.role for place in expected} == {"", "varying"}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@torch.no_grad()
def test_the_order_of_axes_does_not_matter(zoo):
    first, other = (zoo.torch_transformer(batch_first=way) for way in (True, False))
    other.load_state_dict(first.state_dict())
    source, target = torch.randn(3, 5, 16).double(), torch.randn(3, 4, 16).double()
    with TokenMeanEnergy(first) as found:
        first(source, target)
    with TokenMeanEnergy(other) as turned:
        other(source.transpose(0, 1), target.transpose(0, 1))
    assert turned.readings() == pytest.approx(found.readings(), rel=1e-9)
    with TokenMeanEnergy(first) as single:
        first(source[0], target[0])
    assert single.readings().keys() == found.readings().keys()


def test_infinity_is_null_in_a_record(make_model):
    """One token a sentence: it is its own mean, and nothing varies."""
    model = make_model("pre_ln", architecture="decoder_only", encoder_layers=0)
    ids = torch.tensor([[5], [7]])
    with torch.no_grad(), TokenMeanEnergy(model) as probe:
        model(ids)
    readings = probe.readings()
    assert readings[Place("decoder", 1)] == math.inf
    assert math.isnan(readings[Place("decoder", 1, "self", "varying")])
    record = Recorder(model, lambda model: model(ids)).measure()
    assert record["token_mean_energy"]["decoder"] == [None, None]
    assert json.loads(json.dumps(record, allow_nan=False)) == record
