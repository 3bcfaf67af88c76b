"""Sub-LN's gains, and what cross-attention does not get."""

import math

import pytest

from deepnet.schemes.catalogue import load_scheme
from deepnet.schemes.coefficients import coefficients


def _gains(n, m, *, stack, kind):
    rows = coefficients(load_scheme("sub_ln"), encoder_layers=n, decoder_layers=m)["sites"]
    return next(r["gain"] for r in rows if r["stack"] == stack and r["kind"] == kind)


@pytest.mark.parametrize(
    ("n", "m", "stack", "gain"),
    [  # arXiv 2210.06423, table 2
        (1, 0, "encoder", math.log(2) ** 0.5),
        (12, 0, "encoder", math.log(24) ** 0.5),
        (0, 24, "decoder", math.log(48) ** 0.5),
        (18, 6, "encoder", (math.log(18) * math.log(36) / 3) ** 0.5),
        (18, 6, "decoder", math.log(18) ** 0.5),
    ],
)
def test_gains_of_the_paper(n, m, stack, gain):
    for role, found in _gains(n, m, stack=stack, kind="self").items():
        assert found == pytest.approx(gain if role in ("v", "out") else 1.0, rel=1e-12)
    for found in _gains(n, m, stack=stack, kind="ffn").values():
        assert found == pytest.approx(gain, rel=1e-12)


def test_cross_attention_is_plain_pre_norm(make_model):
    cross = make_model("sub_ln").decoder.layers[0].sublayers["cross"]
    assert cross.branch.heads_norm is None
    assert set(_gains(6, 6, stack="decoder", kind="cross").values()) == {1.0}
