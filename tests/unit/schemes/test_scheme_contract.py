"""Every check that deepnet offers for schemes, over the table of cases."""

from dataclasses import replace

import cases
import equations
import pytest

from deepnet.errors import SchemeError
from deepnet.schemes.base import Policy
from deepnet.schemes.catalogue import list_schemes
from deepnet.testing.scheme_checks import (
    CHECKS,
    check_coefficients,
    check_equation,
    check_gradients,
    check_initial_std,
    check_parameter_count,
    check_policies,
)
from deepnet.testing.scheme_models import case_architectures, case_model, example_batch

_DEEPNORM = next(case for case in cases.CASES if case.name == "deepnorm")


def test_each_scheme_file_has_a_row_and_each_row_a_file():
    assert sorted({case.name for case in cases.CASES}) == list_schemes()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: f"{case.name}{dict(case.options)}")
def test_the_scheme_holds(case, check):
    check(case)


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: f"{case.name}{dict(case.options)}")
def test_a_probe_looks_at_one_vector_a_token_whatever_the_state_is(case):
    architecture = case_architectures(case)[0]
    model, batch = case_model(case, architecture), example_batch(architecture)
    stack, seen = model.stacks()[-1], []
    for layer in stack.layers:
        layer.register_forward_hook(lambda *call: seen.append(stack.stream.peek(call[2])))
    model(*batch)
    tokens = batch[-1] if architecture == "encoder_decoder" else batch[0]
    assert len(seen) == len(stack.layers)
    assert all(x.shape == (*tokens.shape, model.config.d_model) for x in seen)


def _seen_by_check_equation(case):
    """Return (architecture, stack, N, M) of every stack that a case's expression is asked about."""
    seen = []

    def equation(x, parts):
        config = parts.config
        depths = (config.encoder_layers, config.decoder_layers)
        seen.append((config.architecture, parts.name, *depths))
        return case.equation(x, parts)

    check_equation(replace(case, equation=equation))
    return seen


def test_an_expression_is_asked_of_every_stack_at_different_depths():
    seen = _seen_by_check_equation(_DEEPNORM)
    assert [(architecture, stack) for architecture, stack, *_ in seen] == [
        ("encoder_decoder", "encoder"),
        ("encoder_decoder", "decoder"),
        ("encoder_only", "encoder"),
        ("decoder_only", "decoder"),
    ]
    assert all(n != m for *_, n, m in seen)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
@pytest.mark.parametrize("architecture", ["encoder_decoder", "encoder_only", "decoder_only"])
def test_an_expression_that_is_wrong_of_one_stack_alone_is_found(architecture, stack):
    def wrong(parts):
        here = (parts.config.architecture, parts.name) == (architecture, stack)
        return cases.deepnorm_alpha(parts) * (1.001 if here else 1.0)

    case = replace(_DEEPNORM, equation=equations.post_norm(wrong))
    if architecture in ("encoder_decoder", f"{stack}_only"):
        with pytest.raises(SchemeError, match=f"the {stack} of an {architecture}"):
            check_equation(case)
    else:
        check_equation(case)


@pytest.mark.parametrize(
    ("check", "wrong"),
    [
        (check_equation, {"equation": equations.post_norm(1.0)}),
        (check_equation, {"equation": equations.post_norm(1.0, branch=6**0.25)}),
        (check_coefficients, {"coefficients": {(6, 6): (1.0, 1.0), (9, 9): (1.0, 1.0)}}),
        (check_initial_std, {"std": cases.glorot_std}),
        (check_parameter_count, {"extra_parameters": lambda config: 1}),
        (check_gradients, {"zero_gradient": ("*.branch.fc1.*",)}),
        (check_policies, {"policies": {"q": Policy(lr=0.1)}}),
    ],
)
def test_a_wrong_claim_is_found(check, wrong):
    with pytest.raises(SchemeError):
        check(replace(_DEEPNORM, **wrong))
