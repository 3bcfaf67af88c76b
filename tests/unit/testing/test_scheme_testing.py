"""What `deepnet.testing` offers to those who write a scheme: errors of ours, under `python -O` as well."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import deepnet.testing
from deepnet.errors import DeepNetError, SchemeError
from deepnet.schemes.base import Constant, ResidualScheme, Scheduled, SitePlan, glorot
from deepnet.testing import SchemeCase, check_scheme
from deepnet.testing.scheme_checks import check_starts


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


@dataclass(frozen=True, kw_only=True)
class Growing(ResidualScheme):
    """Pre-LN without a norm at the end, whose branches grow over 100 updates, with an idle gate per site."""

    gate: bool = False
    wrong: str = ""

    def site(self, context, site):
        """Return what `wrong` asks for in place of a pre-norm site."""
        grown = Scheduled(lambda t: min(1.0, t / 100))
        made = {"made": {"gate": Gate(1.0)}, "": {"gate": lambda: Gate(2.0)} if self.gate else {}}
        if self.wrong == "dict":
            return {"branch": site.kind}
        return SitePlan(
            branch=site.kind, pre=context.norm(), branch_scale=grown, init=glorot(),
            extra=made.get(self.wrong, {"gate": Unset}),
        )  # fmt: skip


class Gate(nn.Module):
    """A bias that nothing uses."""

    def __init__(self, start):
        super().__init__()
        self.start, self.bias = start, nn.Parameter(torch.empty(16))
        self.reset_parameters()

    def reset_parameters(self):
        """Start as it was told."""
        nn.init.constant_(self.bias, self.start)


class Unset(nn.Module):
    """A module that cannot be filled again."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(16))


def growing(updates):
    """Return x + min(1, t / updates) * f(LN(x)) of every site, by hand."""

    def equation(x, stack):
        for part in stack.sites:
            x = x + min(1.0, stack.updates / updates) * part.f(part.residual.pre(x))
        return x

    return equation


def growing_case(equation=None, **changed):
    """Return what is true of `Growing`, with some of it changed."""
    claims = {
        "equation": equation or growing(100),
        "coefficients": {(6, 6): (1.0, 1.0), (9, 0): (1.0, 1.0)},
        "zero_gradient": ("*.sublayers.*", "encoder_decoder/encoder.*"),
    }
    return SchemeCase(name=f"{__name__}:Growing", **{**claims, **changed})


def test_a_schedule_is_looked_at_on_its_way():
    check_scheme(growing_case())
    with pytest.raises(SchemeError, match="than the equation after 1 updates"):
        check_scheme(growing_case(growing(900)))


@pytest.mark.parametrize(
    ("start", "says"),
    [
        ({"*.gate.bias": (2.0, 0.0)}, None),
        ({"*.gate.bias": (-3.0, 0.0)}, "starts with mean 2 and std 0; claimed -3 and 0"),
        ({"*.gate.bias": (2.0, 0.5)}, "claimed 2 and 0.5"),
        ({"*.gat.*": (2.0, 0.0)}, "no parameter has such a name"),
    ],
)
def test_parameters_without_a_role_start_as_is_claimed(start, says):
    case = growing_case(options={"gate": True}, starts=start)
    if says is None:
        check_starts(case)
        return
    with pytest.raises(SchemeError, match=re.escape(says)):
        check_starts(case)


def test_all_parameters_without_a_gradient_are_told_at_once():
    with pytest.raises(SchemeError) as raised:
        check_scheme(growing_case(zero_gradient=("*.branch.*",)))
    said = str(raised.value)
    assert re.search(r"no gradient reaches \d+ parameters", said)
    for name in ("encoder.layers.*.sublayers.self", "decoder.layers.*.sublayers.cross"):
        assert f"*/{name}.residual.pre.weight" in said


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("made", "extra['gate'] is a Gate; expected a function that makes one"),
        ("unset", "no reset_parameters()"),
        ("dict", "site() returned {'branch': 'self'}; expected a SitePlan"),
    ],
)
def test_what_a_stranger_writes_first_is_told_in_a_line(wrong, says):
    with pytest.raises(SchemeError, match=re.escape(says)) as raised:
        check_scheme(growing_case(options={"wrong": wrong}))
    assert len(str(raised.value).splitlines()) == 1


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
