"""DS-Init's two powers, and merged attention against its formula written out position by position."""

import pytest
import torch

from deepnet.errors import ConfigError
from deepnet.schemes.catalogue import load_scheme
from deepnet.schemes.coefficients import coefficients
from deepnet.schemes.ds_init import Scheme
from deepnet.transformer.attention import MergedAttention
from deepnet.transformer.inputs import Inputs


@pytest.mark.parametrize(("power", "sixteenth"), [(0.5, 0.25), (0.25, 0.5)])
def test_gains_of_the_paper_and_of_its_code(power, sixteenth):
    scheme = load_scheme("ds_init", {"power": power})
    rows = coefficients(scheme, encoder_layers=16, decoder_layers=17)["sites"]
    of_layer = {(row["stack"], row["layer"]): set(row["gain"].values()) for row in rows}
    assert of_layer["encoder", 1] == of_layer["decoder", 1] == {1.0}
    assert of_layer["encoder", 16] == of_layer["decoder", 16] == {sixteenth}


def test_a_decoder_layer_with_merged_attention_has_two_sites():
    rows = coefficients(Scheme(merged=True), encoder_layers=2, decoder_layers=2)["sites"]
    assert [row["kind"] for row in rows] == ["self", "ffn"] * 2 + ["merged", "ffn"] * 2


def _merged(model):
    return next(m for m in model.modules() if isinstance(m, MergedAttention))


def _by_hand(attention, x, memory, keep, own_keep):
    """One head at a time, one position at a time; the values of both sides come from the same matrix."""
    q, k = attention.q(x), attention.k(memory)
    v, own = attention.v(memory), attention.v(x)
    out = torch.zeros_like(x)
    for b, t in torch.cartesian_prod(torch.arange(x.shape[0]), torch.arange(x.shape[1])):
        for columns in (slice(0, 8), slice(8, 16)):
            scores = k[b][:, columns] @ q[b, t, columns] / 8**0.5
            scores[~keep[b]] = -torch.inf
            seen = own_keep[b, : t + 1]
            mean = own[b, : t + 1, columns][seen].mean(0)
            out[b, t, columns] = scores.softmax(0) @ v[b][:, columns] + mean
    return attention.out(out)


def test_merged_attention_is_its_formula(make_model):
    attention = _merged(make_model("ds_init", {"merged": True}))
    x, memory = torch.randn(2, 3, 16).double(), torch.randn(2, 4, 16).double()
    keep = torch.tensor([[True] * 4, [True, True, False, False]])
    found = attention(x, Inputs(memory=memory, memory_keep=keep[:, None, None]))
    expected = _by_hand(attention, x, memory, keep, torch.ones(2, 3, dtype=torch.bool))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_padding_on_the_left_is_no_part_of_the_mean(make_model):
    attention = _merged(make_model("ds_init", {"merged": True}))
    x, memory = torch.randn(2, 3, 16).double(), torch.randn(2, 4, 16).double()
    keep, own = torch.ones(2, 4, dtype=torch.bool), torch.tensor([[True] * 3, [False, True, True]])
    see = own[:, None, None] & torch.ones(3, 3, dtype=torch.bool).tril()
    see |= torch.eye(3, dtype=torch.bool)
    found = attention(x, Inputs(keep=see, memory=memory, memory_keep=keep[:, None, None]))
    expected = _by_hand(attention, x, memory, keep, own)
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(found[1, 1:], expected[1, 1:], rtol=0, atol=1e-12)


def test_merged_attention_needs_an_encoder(make_model):
    with pytest.raises(ConfigError, match="'decoder_only' has no cross-attention"):
        make_model("ds_init", {"merged": True}, architecture="decoder_only", encoder_layers=0)


def test_a_power_below_0_is_refused():
    with pytest.raises(ConfigError, match="power is -1"):
        Scheme(power=-1)
