import math

import pytest
import torch
import torch.nn.functional as F

from deepnet.theory.magnitude import direction, magnitude, magnitude_gradient, role_magnitudes


@pytest.mark.parametrize("shape", [(8, 8), (5, 12), (12, 5)])
def test_lambda_minimises_the_distance_from_orthogonality(shape):
    weight = torch.randn(shape, dtype=torch.float64)
    product = weight @ weight.T

    def distance(scale):
        return float((product / scale**2 - torch.eye(shape[0])).norm())

    found = magnitude(weight)
    grid = torch.linspace(0.5, 1.5, 1001, dtype=torch.float64) * found
    best = min(grid.tolist(), key=distance)
    assert best == pytest.approx(found, rel=1e-3)
    assert magnitude(weight.T) == pytest.approx(found, rel=1e-12)


def test_an_orthogonal_matrix_has_its_scale():
    weight = 0.3 * torch.nn.init.orthogonal_(torch.empty(16, 16, dtype=torch.float64))
    assert magnitude(weight) == pytest.approx(0.3, rel=1e-12)
    torch.testing.assert_close(direction(weight), weight / 0.3)


def test_a_glorot_draw_has_sqrt_2_times_its_gain():
    weight = torch.nn.init.xavier_normal_(torch.empty(300, 500, dtype=torch.float64), gain=0.7)
    assert magnitude(weight) == pytest.approx(0.7 * math.sqrt(2 * 801 / 800), rel=0.01)


def test_a_zero_matrix_has_no_direction():
    assert magnitude(torch.zeros(3, 4)) == 0.0
    assert direction(torch.zeros(3, 4)).abs().sum() == 0.0


def test_the_probe_is_the_derivative_by_lambda():
    weight = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    x = torch.randn(10, 4, dtype=torch.float64)

    def loss(w):
        return torch.tanh(x @ w.T).square().sum()

    (gradient,) = torch.autograd.grad(loss(weight), weight)
    unit, scale, h = direction(weight), magnitude(weight), 1e-6
    expected = (loss((scale + h) * unit) - loss((scale - h) * unit)) / (2 * h)
    assert magnitude_gradient(weight, gradient) == pytest.approx(float(expected.detach()), rel=1e-7)


def test_roles_pool_their_matrices(make_model, sentences):
    model = make_model("deepnorm", architecture="decoder_only", encoder_layers=0, decoder_layers=3)

    def loss():
        return F.cross_entropy(model(sentences[0]).flatten(0, 1), torch.arange(15) % 29)

    found = {m.role: m for m in role_magnitudes(model, loss)}
    assert {m.count for m in found.values()} == {1, 3}
    loss().backward()
    gradients = [layer.sublayers["self"].branch.v.weight.grad for layer in model.decoder.layers]
    expected = math.sqrt(sum(float(g.square().sum()) for g in gradients) / 3)
    assert found["v"].gradient == pytest.approx(expected, rel=1e-10)
    assert found["q"].gradient < 0.5 * found["v"].gradient
