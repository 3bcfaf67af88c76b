"""What `deepnet.testing` offers to those who write a scheme: errors of ours, under `python -O` as well."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch.nn.functional as F

import deepnet.testing
from deepnet.errors import DeepNetError, SchemeError
from deepnet.schemes.base import Constant, ResidualScheme, SitePlan, glorot
from deepnet.testing import SchemeCase, check_scheme


@dataclass(frozen=True, kw_only=True)
class Doubled(ResidualScheme):
    """Post-LN with a skip twice as strong, as docs/architecture.md shows it."""

    equation: ClassVar[str] = "x <- LN(2*x + f(x))"

    def site(self, context, site):
        """Return a post-norm site with the skip doubled."""
        return SitePlan(branch=site.kind, post=context.norm(), skip=Constant(2.0), init=glorot())


def doubled(x, stack, skip=2.0):
    """Return LN(2*x + f(x)) of every site, by hand."""
    for part in stack.sites:
        norm = part.residual.post
        total = skip * x + part.f(x)
        x = F.layer_norm(total, (total.shape[-1],), norm.weight, norm.bias, norm.eps)
    return x


def case(**changed):
    """Return what is true of `Doubled`, with some of it changed."""
    claims = {"equation": doubled, "coefficients": {(6, 6): (2.0, 1.0), (9, 0): (2.0, 1.0)}}
    return SchemeCase(name=f"{__name__}:Doubled", **{**claims, **changed})


def test_a_scheme_of_ones_own_is_passed():
    check_scheme(case())


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"equation": lambda x, stack: doubled(x, stack, 1.0)}, "computes"),
        ({"coefficients": {(6, 6): (2.0, 1.0)}}, "two depths"),
        ({"coefficients": {(6, 6): (3.0, 1.0), (9, 0): (2.0, 1.0)}}, "alpha at 6-6 is 2.0"),
        ({"extra_parameters": lambda config: 1}, "parameters"),
        ({"std": lambda stack, role, layer: 0.5}, "standard errors"),
        ({"zero_gradient": ("*.branch.fc1.*",)}, "gradient"),
    ],
)
def test_a_wrong_claim_is_an_error_of_ours_that_names_the_scheme(wrong, says):
    with pytest.raises(SchemeError, match=says) as raised:
        check_scheme(case(**wrong))
    assert isinstance(raised.value, DeepNetError)
    assert str(raised.value).startswith(f"{__name__}:Doubled: ")


def test_nothing_is_lost_when_python_leaves_out_its_assertions():
    code = (
        "from deepnet.testing import SchemeCase, check_scheme\n"
        "claims = {(6, 6): (3.0, 1.0), (9, 9): (1.0, 1.0)}\n"
        "case = SchemeCase(name='pre_ln', equation=lambda x, stack: x, coefficients=claims)\n"
        "check_scheme(case)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-O", "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "SchemeError: pre_ln: " in ended.stderr


def test_no_check_leaves_an_assertion_to_the_interpreter():
    files = Path(deepnet.testing.__file__).parent.glob("*.py")
    lines = [line.strip() for file in files for line in file.read_text().splitlines()]
    assert len(lines) > 300
    assert not any(line.startswith("assert ") for line in lines)
