import pytest
import torch
from torch.autograd.functional import jacobian

from deepnet.theory.jacobian import expected_norms, jacobian_norms


@pytest.fixture
def centred() -> torch.Tensor:
    x = 3.0 * torch.randn(2, 3, 12, dtype=torch.float64)
    return x - x.mean(-1, keepdim=True)


def test_estimate_is_exact_for_centred_inputs(centred):
    norm = torch.nn.LayerNorm(12, eps=1e-30).double()
    found = jacobian_norms(norm, centred)
    assert found.shape == (2, 3)
    torch.testing.assert_close(found, expected_norms(centred), rtol=1e-10, atol=0.0)


def test_norms_equal_autograds_jacobian(centred):
    for norm in (torch.nn.LayerNorm(12).double(), torch.nn.RMSNorm(12).double()):
        torch.nn.init.uniform_(norm.weight, 0.5, 2.0)
        whole = jacobian(norm, centred[0, 1] + 0.7)
        found = jacobian_norms(norm, centred + 0.7)[0, 1]
        assert float(found) == pytest.approx(float(torch.linalg.svdvals(whole)[0]), rel=1e-10)


def test_estimate_is_too_small_where_the_mean_is_not_zero(centred):
    norm = torch.nn.LayerNorm(12, eps=1e-30).double()
    shifted = centred + 5.0
    too_small = shifted.norm(dim=-1) / centred.norm(dim=-1)
    torch.testing.assert_close(jacobian_norms(norm, shifted), too_small * expected_norms(shifted))
    assert (too_small > 1.1).all()


def test_a_larger_input_stops_the_gradient(centred):
    norm = torch.nn.LayerNorm(12, eps=1e-30).double()
    ratio = jacobian_norms(norm, centred) / jacobian_norms(norm, 10 * centred)
    torch.testing.assert_close(
        ratio, torch.full((2, 3), 10.0, dtype=torch.float64), rtol=1e-9, atol=0
    )
