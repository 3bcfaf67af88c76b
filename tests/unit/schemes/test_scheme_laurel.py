"""LAuReL: it starts as Pre-LN, the map's start, bounded weights, and which form other people's models can carry."""

import pytest
import torch

import deepnet
from deepnet.errors import ConfigError, ExportError
from deepnet.schemes.laurel import LowRank

FORMS = ["rw", "lr", "rw_lr"]


def test_the_maps_start():
    """D = 8, r = 2: entries 1 / sqrt(16), channel by channel in turn; B = 0."""
    module = LowRank(8, 2)
    expected = torch.tensor([[0.25, 0.0] * 4, [0.0, 0.25] * 4])
    assert torch.equal(module.a.detach(), expected)
    assert not module.b.any()
    x = torch.randn(3, 8)
    assert not module(x).any()


def test_a_comes_first():
    module = LowRank(6, 2).double()
    with torch.no_grad():
        module.a.normal_()
        module.b.normal_()
    x = torch.randn(5, 6, dtype=torch.float64)
    torch.testing.assert_close(module(x), (module.b @ (module.a @ x.T)).T, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("form", FORMS)
def test_it_starts_as_pre_ln_exactly(make_model, sentences, form):
    ours, plain = make_model("laurel", {"form": form}), make_model("pre_ln")
    shared = {n: t for n, t in ours.state_dict().items() if n in plain.state_dict()}
    plain.load_state_dict(shared)
    assert torch.equal(ours(*sentences), plain(*sentences))


def test_the_weights_stay_between_0_and_2(make_model):
    model = make_model("laurel", {"form": "rw"})
    site = model.decoder.layers[0].sublayers["cross"].residual
    one = torch.ones(1, dtype=torch.float64)
    for number, expected in ((-50.0, 0.0), (0.0, 1.0), (50.0, 2.0), (1.0, 1.4621171572600098)):
        with torch.no_grad():
            site.skip.factor.fill_(number)
            site.branch_scale.factor.fill_(-number)
            found = site.skip(one), site.branch_scale(one)
        assert found[0].item() == pytest.approx(expected, abs=1e-12)
        assert found[1].item() == pytest.approx(2.0 - expected, abs=1e-12)


def test_a_learns_from_the_second_update_on(make_model, sentences):
    model = make_model("laurel")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    low_rank = model.decoder.layers[1].sublayers["ffn"].residual.extra["low_rank"]
    learning = []
    for _ in range(2):
        optimizer.zero_grad()
        model(*sentences).logsumexp(-1).sum().backward()
        learning.append((bool(low_rank.a.grad.any()), bool(low_rank.b.grad.any())))
        optimizer.step()
    assert learning == [(False, True), (True, True)]


@pytest.mark.parametrize(
    ("form", "reason"),
    [("rw", "its skips are scaled with no norm behind them"), ("lr", "more than one tensor")],
)
def test_it_does_not_fold(make_model, form, reason):
    model = make_model("laurel", {"form": form})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    with pytest.raises(ExportError, match=reason):
        deepnet.fold(model)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"rank": 0}, "rank is 0"), ({"form": "rw", "rank": 4}, "'rank' has no effect")],
)
def test_impossible_options_are_refused(make_model, options, said):
    with pytest.raises(ConfigError, match=said):
        make_model("laurel", options)
