"""ResiDual: both streams get the same branch, and a scale of the sum changes no output."""

import pytest
import torch

from deepnet.errors import ConfigError
from deepnet.schemes.resi_dual import Scheme
from deepnet.transformer.inputs import Inputs


def test_dropout_zeroes_the_same_in_both_streams(make_model):
    layer = make_model("resi_dual", dropout=0.5).encoder.layers[0].train()
    ffn = layer.sublayers["ffn"]
    x, d = torch.randn(2, 2, 3, 16, dtype=torch.float64)
    new_x, new_d = ffn((x, d), Inputs(), None)
    y = new_d - d
    assert (y == 0).any()
    torch.testing.assert_close(new_x, ffn.residual.post(x + y))


def test_a_scaled_sum_gives_the_same_logits(make_model, sentences):
    plain = make_model("resi_dual", norm_eps=1e-14)
    scaled = make_model("resi_dual", {"sum_scale": 0.1}, norm_eps=1e-14)
    scaled.load_state_dict(plain.state_dict())
    torch.testing.assert_close(scaled(*sentences), plain(*sentences), rtol=1e-9, atol=1e-9)


def test_a_scale_of_zero_is_refused():
    with pytest.raises(ConfigError, match="sum_scale is 0"):
        Scheme(sum_scale=0.0)
