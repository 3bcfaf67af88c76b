"""Mix-LN's share of Post-LN layers."""

import pytest

from deepnet.errors import ConfigError
from deepnet.schemes.catalogue import load_scheme
from deepnet.transformer.residual import Residual


def _post_layers(model, stack):
    sites = [m for m in model.modules() if isinstance(m, Residual) and m.site.stack == stack]
    layers = {site.site.layer: site.post is not None for site in sites}
    assert all((site.pre is None) == layers[site.site.layer] for site in sites)
    return [layer for layer, is_post in layers.items() if is_post]


@pytest.mark.parametrize(
    ("ratio", "layers", "count"),
    [(0.25, 3, 0), (0.25, 4, 1), (0.25, 12, 3), (0.0, 4, 0), (1.0, 4, 4), (0.29, 100, 29)],
)
def test_the_lowest_layers_are_post_ln(make_model, ratio, layers, count):
    shape = {"encoder_layers": layers, "decoder_layers": 4, "d_model": 4, "ffn_dim": 4}
    model = make_model("mix_ln", {"ratio": ratio}, **shape)
    assert _post_layers(model, "encoder") == list(range(1, count + 1))
    assert model.encoder.ends.final is not None


def test_stacks_count_their_own_layers(make_model):
    model = make_model("mix_ln", encoder_layers=4, decoder_layers=8)
    assert _post_layers(model, "encoder") == [1]
    assert _post_layers(model, "decoder") == [1, 2]


def test_a_share_above_1_is_refused():
    with pytest.raises(ConfigError, match="ratio is 4"):
        load_scheme("mix_ln", {"ratio": 4})
