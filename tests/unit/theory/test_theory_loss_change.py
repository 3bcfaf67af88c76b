import contextlib

import pytest
import torch
import torch.nn.functional as F
from pytorch_optimizer import Lamb

from deepnet.theory.loss_change import first_update, loss_change, moved


def torch_optimizer(family, parameters, lr):
    if family == "lamb":
        return Lamb(parameters, lr=lr, weight_decouple=False, adam_debias=True, eps=1e-12)
    return {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[family](parameters, lr=lr)


@pytest.mark.parametrize("family", ["sgd", "adam", "lamb"])
def test_first_update_is_the_optimisers(family):
    weight = torch.nn.Parameter(0.05 * torch.randn(7, 5, dtype=torch.float64))
    start, gradient = weight.detach().clone(), torch.randn(7, 5, dtype=torch.float64)
    weight.grad = gradient.clone()
    torch_optimizer(family, [weight], 1e-3).step()
    expected = (weight.detach() - start) / 1e-3
    found = first_update(start, gradient, optimizer=family)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def test_lambs_trust_ratio_is_1_where_the_weight_is_zero():
    """By its paper; pytorch-optimizer leaves Adam's bias correction out there and steps sqrt(10) times as far."""
    gradient = torch.tensor([0.3, -2.0])
    assert first_update(torch.zeros(2), gradient, optimizer="lamb").tolist() == [-1.0, 1.0]


@pytest.mark.parametrize(("family", "lr"), [("sgd", 1e-5), ("adam", 1e-7), ("lamb", 1e-6)])
def test_prediction_holds_at_first_order_and_weights_return(make_model, sentences, family, lr):
    model = make_model(architecture="decoder_only", encoder_layers=0, decoder_layers=6)

    def loss():
        return F.cross_entropy(model(sentences[0]).flatten(0, 1), torch.arange(15) % 29)

    weights = list(model.parameters())
    before = [weight.detach().clone() for weight in weights]
    found = loss_change(loss, weights, optimizer=family, lr=lr)
    assert found.measured < 0.0
    assert found.measured == pytest.approx(found.predicted, rel=1e-3)
    assert found.halving == pytest.approx(1.0, abs=1e-3)
    assert all(torch.equal(a, b) for a, b in zip(weights, before, strict=True))


def test_predictions_are_the_norms_of_the_gradient():
    weight = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    slope = torch.randn(4, 3, dtype=torch.float64)
    rms = float(weight.detach().square().mean().sqrt())
    expected = {
        "sgd": slope.square().sum(),
        "adam": slope.abs().sum(),
        "lamb": rms * slope.abs().sum(),
    }
    for family, size in expected.items():
        found = loss_change(lambda: (weight * slope).sum(), [weight], optimizer=family, lr=0.01)
        assert found.predicted == pytest.approx(-0.01 * float(size), rel=1e-12)


def test_weights_return_after_an_error():
    weight = torch.ones(3)
    with contextlib.suppress(ValueError), moved([weight], [torch.ones(3)], lr=0.5):
        assert weight.tolist() == [1.5, 1.5, 1.5]
        raise ValueError("stop")
    assert weight.tolist() == [1.0, 1.0, 1.0]
