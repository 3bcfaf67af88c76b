"""HybridNorm: a norm that feeds the skip, and where it is defined."""

import pytest
import torch

from deepnet.errors import ConfigError


def test_an_encoder_decoder_is_refused(make_model):
    with pytest.raises(ConfigError, match="decoder_only"):
        make_model("hybrid_norm")


@pytest.mark.parametrize("first_pre_norm", [False, True])
def test_without_branches_the_stream_is_normed_unless_the_first_block_is_pre_norm(
    make_model, first_pre_norm
):
    model = make_model(
        "hybrid_norm",
        {"first_pre_norm": first_pre_norm},
        architecture="decoder_only",
        encoder_layers=0,
        decoder_layers=1,
    )
    layer = model.decoder.layers[0]
    with torch.no_grad():
        layer.sublayers["self"].branch.out.weight.zero_()
        layer.sublayers["ffn"].branch.fc2.weight.zero_()
    states = []
    layer.register_forward_hook(lambda module, inputs, output: states.append((inputs[0], output)))
    model(torch.randint(0, 29, (2, 4)))
    x, y = states[0]
    expected = x if first_pre_norm else torch.nn.functional.layer_norm(x, (16,))
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-9)


def test_keys_are_normed_head_by_head(make_model):
    model = make_model("hybrid_norm", architecture="decoder_only", encoder_layers=0)
    assert model.decoder.layers[0].sublayers["self"].branch.k_norm.normalized_shape == (8,)
