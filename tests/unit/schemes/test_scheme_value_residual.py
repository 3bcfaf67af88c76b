"""Value residual: where it starts as its base, whose values are handed on, and what SVFormer has no weights for."""

import pytest
import torch

from deepnet.errors import ConfigError
from deepnet.rebuild import check_shape
from deepnet.schemes.catalogue import load_scheme
from deepnet.schemes.coefficients import coefficients


@pytest.mark.parametrize("mix", ["half", "learned", "first"])
@pytest.mark.parametrize("base", ["pre_ln", "deepnorm"])
def test_one_layer_is_its_base_bit_for_bit_and_two_are_not(make_model, sentences, mix, base):
    for layers in (1, 2):
        shape = {"encoder_layers": layers, "decoder_layers": layers}
        model = make_model("value_residual", {"mix": mix, "base": base}, **shape)
        plain = make_model(base, **shape)
        plain.load_state_dict(model.state_dict(), strict=False)
        assert torch.equal(model(*sentences), plain(*sentences)) == (layers == 1)


def test_a_trained_mixture_starts_as_the_mean(make_model, sentences):
    learned, half = (make_model("value_residual", {"mix": mix}) for mix in ("learned", "half"))
    half.load_state_dict(learned.state_dict(), strict=False)
    torch.testing.assert_close(learned(*sentences), half(*sentences), rtol=0, atol=1e-12)


@pytest.mark.parametrize("m", [0.0, 0.3, 1.0])
def test_values_are_those_of_the_formula_to_1e_10(make_model, sentences, m):
    """Of all three kinds of attention, what each hands its heads, beside what was projected."""
    model = make_model("value_residual", {"mix": "learned"}, encoder_layers=3, decoder_layers=4)
    projected, read = {}, {}
    for site in model.sites():
        if site.kind == "ffn":
            continue
        place = (site.residual.site.stack, site.kind, site.residual.site.layer)
        if "value_mix" in site.residual.extra:
            torch.nn.init.constant_(site.residual.extra["value_mix"].m, m)
        site.branch.v.register_forward_hook(lambda *call, p=place: projected.update({p: call[2]}))
        site.branch.register_forward_pre_hook(
            lambda _, args, p=place: read.update({p: args[1].values})
        )
    model(*sentences)
    assert len(read) == 3 + 4 + 4
    for (stack, kind, layer), values in read.items():
        first, own = projected[stack, kind, 1], projected[stack, kind, layer]
        expected = own if layer == 1 else (1 - m) * own + m * first
        torch.testing.assert_close(values, expected, rtol=0, atol=1e-10)


def test_svformer_has_no_projection_of_values_above_the_first_layer(make_model):
    model = make_model("value_residual", {"mix": "first"}, encoder_layers=3, decoder_layers=3)
    owners = {name.split(".branch.")[0] for name in model.state_dict() if ".branch.v." in name}
    assert owners == {
        "encoder.layers.0.sublayers.self",
        "decoder.layers.0.sublayers.self",
        "decoder.layers.0.sublayers.cross",
    }
    assert {weight.layer for weight in model.role_weights() if weight.role == "v"} == {1}


def test_layers_without_values_of_their_own_cannot_add_to_them():
    scheme = load_scheme("value_residual", {"mix": "first", "base": "value_embeddings"})
    with pytest.raises(ConfigError, match="mix 'first' leaves layers no values of their own"):
        coefficients(scheme, encoder_layers=2, decoder_layers=2)


@pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only", "encoder_decoder"])
def test_a_bundle_without_matrices_of_values_is_believed(make_model, architecture):
    layers = {f"{name}_layers": 12 * (name in architecture) for name in ("encoder", "decoder")}
    if architecture == "encoder_decoder":
        layers = {"encoder_layers": 6, "decoder_layers": 6}
    shape = {**layers, "architecture": architecture, "d_model": 64, "ffn_dim": 64}
    model = make_model("value_residual", {"mix": "first"}, **shape)
    check_shape(model.config, model.state_dict())


def test_the_first_layer_alone_has_values_and_so_is_not_looped(make_model):
    with pytest.raises(ConfigError, match=r"take 'half', or model\.loops = 1"):
        make_model("value_residual", {"mix": "first"}, loops=2, coefficient_depth="stored")
