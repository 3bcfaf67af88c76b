import math

import pytest
import torch

from deepnet.errors import ConfigError
from deepnet.theory.bounds import (
    SiteScales,
    attention_magnitude,
    encoder_decoder_update,
    stack_update,
)


def site(v, w, alpha, kind="ffn"):
    return SiteScales(kind=kind, v=v, w=w, alpha=alpha)


def test_the_sum_is_the_papers():
    sites, steps = [site(3.0, 4.0, 2.0), site(1.0, 0.0, 4.0)], [0.1, 0.4]
    assert stack_update(sites, steps) == pytest.approx(5 / 2 * 0.1 + 1 / 4 * 0.4, rel=1e-15)


def test_the_encoder_counts_through_cross_attentions_only():
    encoder = [site(3.0, 4.0, 2.0)]
    decoder = [site(0.5, 0.5, 2.0, "self"), site(0.5, 0.6, 2.0, "cross"), site(0.5, 0.5, 2.0)]
    found = encoder_decoder_update(
        encoder, decoder, encoder_steps=[0.1], decoder_steps=[0.0, 0.0, 0.0]
    )
    assert found == pytest.approx(0.5 * 0.6 / 2 * 5 / 2 * 0.1, rel=1e-15)


def test_a_step_is_missing():
    with pytest.raises(ConfigError, match="2 sites but 1 steps"):
        stack_update([site(1.0, 1.0, 1.0)] * 2, [0.1])


def chain(parameters, alphas):
    """The paper's proof, width 1: x <- (alpha + v w) x / sqrt(alpha^2 + v^2 w^2), from x = 1."""
    x = torch.ones((), dtype=torch.float64)
    for (v, w), alpha in zip(parameters, alphas, strict=True):
        x = (alpha + v * w) * x / (alpha**2 + (v * w) ** 2).sqrt()
    return x


@pytest.mark.parametrize("size", [0.01, 0.1])
def test_the_proofs_own_model_stays_under_the_bound_where_branches_are_small(size):
    """A site's derivative is at most its slope; the printed form leaves out the product of (1 + v w / alpha)."""
    layers = 20
    parameters = [torch.tensor([size, 2 * size], dtype=torch.float64) for _ in range(layers)]
    alphas = [torch.tensor(2.0, dtype=torch.float64)] * layers
    steps = [1e-6 * torch.ones(2, dtype=torch.float64) for _ in range(layers)]
    moved = chain([p + s for p, s in zip(parameters, steps, strict=True)], alphas)
    measured = float(moved - chain(parameters, alphas))
    sites = [site(size, 2 * size, 2.0)] * layers
    bound = stack_update(sites, [float(s.norm()) for s in steps])
    left_out = (1 + 2 * size**2 / 2.0) ** layers
    assert 0.5 * bound < measured <= bound * left_out


def test_post_ln_grows_beyond_the_printed_form_in_the_proofs_own_model():
    one = torch.ones(2, dtype=torch.float64)
    moved = chain([1e-6 * one + one * 0.5] * 20, [torch.ones(())] * 20)
    start = chain([one * 0.5] * 20, [torch.ones(())] * 20)
    bound = stack_update([site(0.5, 0.5, 1.0)] * 20, [1e-6 * math.sqrt(2)] * 20)
    assert float(moved - start) > 2 * bound


def test_attention_never_exceeds_its_longest_row():
    rows, scores = torch.randn(9, 64).double(), 3 * torch.randn(50, 9).double()
    mixed = torch.softmax(scores, -1) @ rows
    assert mixed.norm(dim=1).max() <= rows.norm(dim=1).max()
    assert attention_magnitude(scores, rows) < 1.1


def test_attention_to_one_row_keeps_its_magnitude():
    rows = torch.nn.functional.normalize(torch.randn(9, 64).double(), dim=1)
    sure = torch.full((9, 9), -1e3).double().fill_diagonal_(0.0)
    assert attention_magnitude(sure, rows) == pytest.approx(1.0, abs=1e-12)


def test_attention_over_independent_rows_loses_what_the_lemma_hides():
    rows = torch.randn(16, 20_000).double()
    assert attention_magnitude(torch.zeros(1, 16).double(), rows) == pytest.approx(0.25, rel=0.03)


def test_rows_that_cancel_leave_nothing():
    row = torch.randn(1, 64).double()
    rows = torch.cat([row, -row])
    assert attention_magnitude(torch.zeros(1, 2).double(), rows) == pytest.approx(0.0, abs=1e-15)
