"""ScaleNorm beside the root-mean-square norm it nearly is, and FixNorm where it could go wrong."""

import pytest
import torch
from torch import nn

from deepnet.schemes.scale_norm import ScaleNorm


def test_it_is_a_root_mean_square_norm_of_uniform_gain():
    norm, rms = ScaleNorm(16).double(), nn.RMSNorm(16, eps=0.0).double()
    x = torch.randn(3, 4, 16).double()
    with torch.no_grad():
        norm.g.fill_(8.0)
        rms.weight.fill_(8.0 / 4.0)
    torch.testing.assert_close(norm(x), rms(x), rtol=1e-12, atol=0)


def test_it_starts_as_that_norm_with_gain_1():
    x = torch.randn(3, 16).double()
    torch.testing.assert_close(ScaleNorm(16).double()(x), nn.RMSNorm(16, eps=0.0).double()(x))


def test_eps_is_a_floor_of_the_length():
    x = torch.zeros(2, 16)
    x[0, 0] = 1e-6
    x.requires_grad_()
    found = ScaleNorm(16)(x)
    assert found[0, 0].item() == pytest.approx(4.0 * 1e-6 / 1e-5, rel=1e-6)
    assert not found[1].any()
    found.sum().backward()
    assert torch.isfinite(x.grad).all()


def test_rows_have_unit_length_in_every_use_and_padding_has_none(make_model, sentences):
    model = make_model("scale_norm")
    source, _, _ = sentences
    entered = model.encoder.entry(model.source_embedding(source), 0)
    positions = model.encoder.entry.positions(0, 5)
    lengths = (entered - positions).norm(dim=-1)
    expected = torch.where(source == 29, 0.0, 16.0**0.5).double()  # the sqrt(d) multiplier stays
    torch.testing.assert_close(lengths, expected, rtol=0, atol=1e-12)
    assert model.vocabulary.rows is model.target_embedding
    logits = model.project(torch.eye(16).double()[None])
    torch.testing.assert_close(logits.norm(dim=1), torch.ones(1, 29).double())
    model(*sentences).logsumexp(-1).sum().backward()
    assert not model.target_embedding.weight.grad[29].any()


def test_without_fix_norm_rows_are_as_they_are(make_model):
    model = make_model("scale_norm", {"fix_norm": False}, vocab_size=2000, d_model=64)
    rows = model.target_embedding.rows()[:-1]
    assert rows.std().item() == pytest.approx(64**-0.5, rel=0.008)
