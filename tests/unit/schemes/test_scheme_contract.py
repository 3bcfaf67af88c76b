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

_DEEPNORM = next(case for case in cases.CASES if case.name == "deepnorm")


def test_each_scheme_file_has_a_row_and_each_row_a_file():
    assert sorted({case.name for case in cases.CASES}) == list_schemes()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: f"{case.name}{dict(case.options)}")
def test_the_scheme_holds(case, check):
    check(case)


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
