"""What every scheme must hold, over the table of cases."""

import importlib.util
from pathlib import Path

import pytest
import torch

from deepnet.schemes.catalogue import describe_scheme, list_schemes, load_scheme
from deepnet.schemes.coefficients import coefficients
from deepnet.transformer.initialize import initialization_report
from deepnet.transformer.layers import Sublayer
from deepnet.transformer.models import Transformer, TransformerConfig

_spec = importlib.util.spec_from_file_location("cases", Path(__file__).with_name("cases.py"))
cases = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(cases)
every_case = pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)


def test_each_scheme_file_has_a_row_and_each_row_a_file():
    assert sorted(case.name for case in cases.CASES) == list_schemes()


@every_case
def test_the_site_computes_the_equation(case, make_model):
    model = make_model(case.name, case.options)
    model.scheme.advance(model, 1000)
    x = torch.randn(3, 4, 16, dtype=torch.float64)
    for module in model.decoder.modules():
        if isinstance(module, Sublayer):
            branch = torch.nn.Linear(16, 16).double()
            norm = module.residual.post or module.residual.pre
            torch.nn.init.normal_(norm.weight)
            torch.nn.init.normal_(norm.bias)
            entered, skip = module.residual.enter(x)
            ours = module.residual(skip, branch(entered))
            torch.testing.assert_close(ours, case.update(x, branch, norm), rtol=0, atol=1e-12)


@every_case
def test_coefficients_are_those_of_the_source(case):
    for (n, m), (alpha, beta) in case.coefficients.items():
        found = coefficients(
            load_scheme(case.name, case.options), encoder_layers=n, decoder_layers=m
        )
        for name, expected in (("alpha", alpha), ("beta", beta)):
            value = found["decoder"][name]
            assert value is expected or value == pytest.approx(expected, rel=1e-12)


@every_case
def test_measured_std_of_every_role_is_the_planned_one(case):
    # pooled over a stack the std of n normal draws has a standard error of 1 / sqrt(2n)
    config = TransformerConfig(
        encoder_layers=4, decoder_layers=4, d_model=64, ffn_dim=128, num_heads=4, vocab_size=200
    )
    report = initialization_report(Transformer(config, load_scheme(case.name, case.options)))
    assert {row.role for row in report} == {"q", "k", "v", "out", "fc1", "fc2", "embedding"}
    for row in report:
        assert row.expected_std > 0
        if case.name != "post_ln_init":  # its layers differ, so a pool is no single normal
            assert row.standard_errors < 4, row


@every_case
def test_cached_decoding_equals_the_full_pass(case, make_model, sentences):
    source, keep, target_in = sentences
    model = make_model(case.name, case.options).eval()
    model.scheme.advance(model, 1000)
    cache = model.begin(model.encode(source, keep), keep)
    steps = [model.step(target_in[:, [t]], t, cache)[:, 0] for t in range(target_in.shape[1])]
    full = model(source, keep, target_in)
    torch.testing.assert_close(torch.stack(steps, 1), full, rtol=0, atol=1e-12)


@every_case
@pytest.mark.parametrize("architecture", ["encoder_decoder", "encoder_only", "decoder_only"])
def test_depth_200_is_finite_and_every_parameter_gets_a_gradient(case, architecture):
    layers = {
        "encoder_layers": 0 if architecture == "decoder_only" else 200,
        "decoder_layers": 0 if architecture == "encoder_only" else 200,
    }
    config = TransformerConfig(
        architecture=architecture, d_model=8, ffn_dim=8, num_heads=2, vocab_size=20, **layers
    )
    model = Transformer(config, load_scheme(case.name, case.options)).double()
    model.scheme.advance(model, 4000)
    source, target = torch.randint(0, 19, (2, 3)), torch.randint(0, 19, (2, 3))
    logits = model(source, None, target if architecture == "encoder_decoder" else None)
    logits.logsumexp(-1).sum().backward()
    assert torch.isfinite(logits).all()
    for name, parameter in model.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name
        if not name.endswith("k.bias"):  # softmax does not change under a shift of the scores
            assert parameter.grad.abs().max() > 0, name


@every_case
def test_a_saved_model_computes_the_same(case, make_model, sentences):
    model = make_model(case.name, case.options)
    model.scheme.advance(model, 1000)
    other = make_model(case.name, case.options)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(*sentences), model(*sentences))


@every_case
def test_a_described_scheme_can_be_made_again(case):
    scheme = load_scheme(case.name, case.options)
    options = describe_scheme(scheme)
    assert load_scheme(options.pop("name"), options) == scheme
