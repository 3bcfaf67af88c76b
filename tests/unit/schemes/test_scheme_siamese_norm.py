"""SiameseNorm: what it is without branches, and how much of a branch each stream gets."""

import pytest
import torch

from deepnet.schemes.base import Constant
from deepnet.schemes.catalogue import load_scheme
from deepnet.schemes.coefficients import coefficients
from deepnet.transformer.inputs import Inputs


def _without_branches(stack):
    with torch.no_grad():
        for site in stack.sites():
            last = site.branch.roles()["fc2" if site.kind == "ffn" else "out"]
            last.weight.zero_()
            last.bias.zero_()
    return stack


def test_without_branches_it_is_the_norm_of_the_embedding(make_model):
    stack = _without_branches(make_model("siamese_norm", norm_eps=1e-12).encoder)
    x = torch.randn(2, 3, 16, dtype=torch.float64)
    state = stack.stream.open(x)
    for layer in stack.layers:
        state = layer(state, Inputs())
    expected = (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)
    found = stack.stream.close(state, stack.ends)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert torch.equal(state[1], x)


@pytest.mark.parametrize(("n", "m"), [(3, 3), (0, 3)])
def test_the_normed_stream_gets_a_share_that_falls_with_the_layer_not_the_site(n, m):
    rows = coefficients(load_scheme("siamese_norm"), encoder_layers=n, decoder_layers=m)["sites"]
    assert len(rows) == 2 * n + (3 if n else 2) * m
    for row in rows:
        c = {1: 1.414, 2: 2.0, 3: 2.449}[row["layer"]]
        assert 1 / row["branch"] == pytest.approx(c, abs=5e-4)


def test_the_plain_stream_gets_all_of_it(make_model):
    stack = make_model("siamese_norm").encoder
    sublayer = stack.sites()[-1]
    assert isinstance(sublayer.residual.plan.branch_scale, Constant)
    x, y = torch.randn(2, 2, 3, 16, dtype=torch.float64)
    r = torch.randn(2, 3, 16, dtype=torch.float64)
    _, carry = stack.stream.read((x, y), sublayer.residual)
    normed, plain = stack.stream.write((x, y), carry, sublayer.residual, r)
    torch.testing.assert_close(plain - y, r)
    before = sublayer.residual.extra["normed"](x)
    torch.testing.assert_close(normed - before, r / 2)  # layer 2: sqrt(2 * 2)
