"""GPAS: a gate per layer that scales the stream and not the gradient, on each base."""

import pytest
import torch
from equations import gpas

import deepnet
from deepnet.errors import ExportError
from deepnet.schemes.base import Constant, Learned
from deepnet.schemes.catalogue import load_scheme
from deepnet.schemes.coefficients import coefficients
from deepnet.testing import StackParts
from deepnet.transformer.inputs import Inputs
from deepnet.transformer.models import TransformerConfig
from deepnet.transformer.plans import stack_context
from deepnet.transformer.scales import initial, learned_scale

BASES = ["pre_ln", "peri_ln", "layernorm_scaling", "mix_ln", "post_ln", "deepnorm"]
DEEP_SKIP = 12**0.25


def _gate(skip=1.0):
    """The scale of a site whose base has that skip, in float64."""
    shape = {"architecture": "decoder_only", "encoder_layers": 0, "decoder_layers": 6}
    context = stack_context(
        TransformerConfig(**shape, vocab_size=30), "decoder", optimizer_family="adam"
    )
    base = "pre_ln" if skip == 1.0 else "deepnorm"
    plan = load_scheme("gpas", {"base": base}).stack(context)
    return learned_scale(plan.sites[0][1].skip, 16).double()


@pytest.mark.parametrize("skip", [1.0, DEEP_SKIP])
def test_a_gate_of_1_keeps_a_quarter_and_all_of_the_gradient(skip):
    gate, u = _gate(skip), torch.randn(3, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        gate.factor.fill_(1.0)
    out = gate(u)
    # 1 - silu(1) = 0.268941421369995
    torch.testing.assert_close(out, 0.268941421369995 * skip * u, rtol=1e-12, atol=0)
    received = torch.randn(3, dtype=torch.float64)
    out.backward(received)
    torch.testing.assert_close(u.grad, skip * received, rtol=1e-12, atol=0)


def test_at_the_start_it_is_the_identity_and_the_gate_learns_from_minus_half_the_product():
    gate, u = _gate(), torch.randn(3, dtype=torch.float64)
    out = gate(u)
    assert torch.equal(out, u)
    received = torch.randn(3, dtype=torch.float64)
    out.backward(received)
    torch.testing.assert_close(gate.factor.grad.squeeze(), -(u @ received) / 2, rtol=1e-12, atol=0)


@pytest.mark.parametrize("base", BASES)
def test_it_starts_as_its_base(make_model, sentences, base):
    ours, plain = make_model("gpas", {"base": base}), make_model(base)
    plain.load_state_dict({n: t for n, t in ours.state_dict().items() if "factor" not in n})
    torch.testing.assert_close(ours(*sentences), plain(*sentences), rtol=0, atol=1e-13)
    gains = [
        [r["gain"] for r in coefficients(s, encoder_layers=6, decoder_layers=5)["sites"]]
        for s in (load_scheme("gpas", {"base": base}), load_scheme(base))
    ]
    assert gains[0] == gains[1]  # deepnorm's beta included


@pytest.mark.parametrize("base", BASES)
def test_one_gate_per_layer_at_all_its_sites(make_model, base):
    model = make_model("gpas", {"base": base}, decoder_layers=3)
    gates = [name for name, _ in model.named_parameters() if name.endswith("factor")]
    assert len(gates) == 2 + 3
    for layer in (layer for stack in model.stacks() for layer in stack.layers):
        held = {
            id(scale.factor)
            for sublayer in layer.sublayers.values()
            for scale in (sublayer.residual.skip, sublayer.residual.branch_scale)
            if not isinstance(scale, float)
        }
        assert len(held) == 1


def test_mix_ln_gates_its_lower_layers_skips_and_its_upper_layers_sums(make_model):
    model = make_model("gpas", {"base": "mix_ln"}, encoder_layers=4)
    for site in model.encoder.sites():
        plan = site.residual.plan
        assert isinstance(plan.skip, Learned)
        if site.residual.site.layer == 1:
            assert plan.post is not None
            assert plan.branch_scale == Constant(1.0)
        else:
            assert plan.post is None
            assert plan.branch_scale == plan.skip


@pytest.mark.parametrize(
    ("options", "alpha"), [({}, None), ({"base": "post_ln"}, lambda parts: 1.0)]
)
def test_gradients_are_those_of_the_formula(make_model, options, alpha):
    """Parameter by parameter, the gates moved, through autograd of the formula with a detached stream."""
    model = make_model("gpas", options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    x, stack = torch.randn(3, 4, 16, dtype=torch.float64), model.encoder
    state = x
    for layer in stack.layers:
        state = layer(state, Inputs())
    outputs = (
        stack.stream.close(state, stack.ends),
        gpas(alpha)(x, StackParts.of(stack, Inputs(), model.config)),
    )
    parameters = [p for p in stack.parameters() if p is not None]
    cotangent = torch.randn_like(x)
    found, expected = (
        torch.autograd.grad(y, parameters, cotangent, allow_unused=True) for y in outputs
    )
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-12, atol=1e-12)
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("base", ["post_ln", "deepnorm"])
def test_behind_norms_it_folds(make_model, sentences, base):
    model = make_model("gpas", {"base": base}).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    plain = deepnet.fold(model)
    assert plain.scheme == load_scheme("post_ln")
    torch.testing.assert_close(plain(*sentences), model(*sentences), rtol=0, atol=1e-10)


def test_before_norms_it_folds_only_to_an_eps_for_each(make_model):
    """With P the product of 1 - s so far: branch / P, eps / P^2; `fold`, whose models have one eps, refuses."""
    model = make_model("gpas", architecture="encoder_only", decoder_layers=0, tie_embeddings="all")
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    x, stack = torch.randn(3, 4, 16, dtype=torch.float64), model.encoder
    state = x
    for layer in stack.layers:
        state = layer(state, Inputs())
    expected = stack.stream.close(state, stack.ends)
    product = 1.0
    with torch.no_grad():
        for site in stack.sites():
            g = site.residual.skip.factor
            norm, eps = site.residual.pre, 1e-5 / product**2
            y = site.compute(_normed(x, norm, eps), Inputs())
            # before the gate the branch is 1 / P of what it was, as x is
            x = x + y / product
            product *= float(1 - g * torch.sigmoid(g))
        found = _normed(x, stack.ends.final, 1e-5 / product**2)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
    with pytest.raises(ExportError, match="its skips are scaled with no norm behind them"):
        deepnet.fold(model)


def _normed(x, norm, eps):
    return torch.nn.functional.layer_norm(x, (16,), norm.weight, norm.bias, eps)


def test_a_transform_is_in_the_start():
    assert initial(Learned(init=2.0)) == 2.0
    assert initial(Learned(init=2.0, transform=torch.square)) == 4.0
