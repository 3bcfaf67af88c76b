"""LayerScale: starts by depth, vectors that fold into rows and biases, and what a tiny start does to gradients."""

import pytest
import torch

import deepnet
from deepnet.errors import ConfigError
from deepnet.schemes.base import Learned
from deepnet.schemes.catalogue import load_scheme
from deepnet.transformer.models import TransformerConfig
from deepnet.transformer.plans import stack_context


@pytest.mark.parametrize(
    ("options", "layers", "start"),
    [
        ({}, 12, 0.1),
        ({}, 18, 0.1),
        ({}, 24, 1e-5),
        ({}, 36, 1e-6),
        ({}, 48, 1e-6),
        ({"init": 1e-5}, 36, 1e-5),  # CaiT-XXS36
    ],
)
def test_starts_are_those_of_the_depth(options, layers, start):
    config = TransformerConfig(
        architecture="encoder_only", encoder_layers=layers, decoder_layers=0, vocab_size=30
    )
    context = stack_context(config, "encoder", optimizer_family="adam")
    plan = load_scheme("layerscale", options).stack(context)
    scales = {site_plan.branch_scale for _, site_plan in plan.sites}
    assert scales == {Learned(init=start, shape="vector", scope="site")}


def test_each_stack_counts_its_own_layers(make_model):
    model = make_model("layerscale", encoder_layers=19, d_model=4, ffn_dim=4)
    for stack, start in ((model.encoder, 1e-5), (model.decoder, 0.1)):
        for site in stack.sites():
            found = site.residual.branch_scale.factor.detach()
            torch.testing.assert_close(found, torch.full((4,), start, dtype=torch.float64))


def test_g_goes_into_the_rows_and_the_bias_of_the_last_matrix(make_model):
    model = make_model("layerscale")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    plain = deepnet.fold(model)
    for site, folded in zip(model.sites(), plain.sites(), strict=True):
        last, there = (s.branch.fc2 if s.kind == "ffn" else s.branch.out for s in (site, folded))
        g = site.residual.branch_scale.factor
        torch.testing.assert_close(there.weight, g[:, None] * last.weight, rtol=0, atol=1e-15)
        torch.testing.assert_close(there.bias, g * last.bias, rtol=0, atol=1e-15)


def test_a_branchs_gradients_are_g_times_as_large(make_model, sentences):
    """One site on a fixed stream: below Adam's eps of 1e-8 where g is 1e-6."""
    norms = []
    for start in (1e-3, 1e-6):
        torch.manual_seed(1)
        model = make_model("layerscale", {"init": start}, encoder_layers=1, decoder_layers=1)
        model(*sentences).logsumexp(-1).sum().backward()
        norms.append(model.decoder.layers[0].sublayers["ffn"].branch.fc2.weight.grad.norm())
    assert norms[0] / norms[1] == pytest.approx(1e3, rel=0.05)


def test_a_start_of_0_is_refused():
    with pytest.raises(ConfigError, match=r"init is 0\.0"):
        load_scheme("layerscale", {"init": 0.0})
