"""Keel: the skip's scale counts sites, and the first layer is Pre-LN."""

import pytest

from deepnet.schemes.catalogue import load_scheme
from deepnet.schemes.coefficients import coefficients


@pytest.mark.parametrize(
    ("n", "m", "stack", "alpha"),
    [(0, 64, "decoder", 128), (24, 0, "encoder", 48), (6, 5, "encoder", 12), (6, 5, "decoder", 15)],
)
def test_the_skip_counts_the_sites_of_its_stack(n, m, stack, alpha):
    rows = coefficients(load_scheme("keel"), encoder_layers=n, decoder_layers=m)["sites"]
    skips = {(row["layer"] == 1, row["skip"]) for row in rows if row["stack"] == stack}
    assert skips == {(True, 1.0), (False, float(alpha))}


def test_no_stack_ends_without_a_norm(make_model):
    model = make_model("keel", encoder_layers=1, decoder_layers=2)
    assert model.encoder.ends.final is not None
    assert model.decoder.ends.final is None
    assert model.decoder.layers[-1].sublayers["ffn"].residual.post is not None
    assert model.decoder.layers[0].sublayers["ffn"].residual.post is None
