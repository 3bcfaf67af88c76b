"""The audit judges functions: nothing is found on a right model however it is written (all: docs/audit_matrix.py)."""

from dataclasses import replace
from itertools import cycle, product

import defects
import pytest
import torch
from defects import Shape, post
from right_models import SIZES, TYINGS, Right, schemes
from torch import nn
from writings import WRITINGS, alpha_in_the_last_matrix

import deepnet
from deepnet.schemes.catalogue import load_scheme
from deepnet.transformer.models import Transformer, TransformerConfig

RIGHT = list(schemes())


@pytest.mark.parametrize("index", range(len(RIGHT)), ids=lambda i: f"{RIGHT[i].scheme} {i}")
def test_a_right_model_is_passed_in_three_writings(index):
    """Each writing in another tying, with biases or without; each scheme begins at another, so that all come round."""
    choices, passed = cycle(product(TYINGS, (True, False))), 0
    for writing in (*WRITINGS[index % len(WRITINGS) :], *WRITINGS[: index % len(WRITINGS)]):
        tying, biases = next(choices)
        one = replace(RIGHT[index], writing=writing, tying=tying, biases=biases)
        report = one.audit() or replace(one, biases=False).audit()
        if report is not None:
            assert report.findings == [], writing.__name__
            passed += 1
        if passed == 3:
            return
    pytest.fail(f"{RIGHT[index].scheme} has {passed} writings")


@pytest.mark.parametrize("writing", WRITINGS, ids=lambda one: one.__name__)
def test_a_writing_leaves_what_is_computed(writing):
    schemes_of = {"larger_stream": "pre_ln", "gain_of_the_norm_in_the_weights": "keel"}
    name = schemes_of.get(
        writing.__name__, "peri_ln" if writing.__name__ == "before_a_norm" else "deepnorm"
    )
    plain = Right(name)
    model = plain.model().double().eval()
    expected = model(*plain.inputs(model))
    assert writing(model)
    assert torch.allclose(model(*plain.inputs(model)), expected, rtol=1e-9, atol=1e-9)


# By hand --------------------------------------------------------------------------------------------------------------


def divided_by(alpha: float) -> defects.Combine:
    return lambda x, norm, f: norm(x + f(x) / alpha)


def divided(shape: Shape, *, exact_eps: bool) -> defects.Model:
    """LN(x + f / alpha), its eps divided by alpha^2 or as it was."""
    sites = [divided_by(shape.alpha(stack)) for stack in ("encoder", "decoder")]
    model = defects.Model(shape, encoder=sites[0], decoder=sites[1])
    for stack in ("encoder", "decoder") if exact_eps else ():
        for site in model.stacks[stack]:
            site.norm.eps /= shape.alpha(stack) ** 2
    return defects.draw(model, shape.beta)


@pytest.mark.parametrize("shape", [Shape(4, 4), Shape(6, 0), Shape(0, 6)], ids=str)
def test_deepnorm_divided_by_alpha_is_deepnorm(shape):
    model = divided(shape, exact_eps=True)
    report = deepnet.audit(model, defects.inputs(shape), claims="deepnorm")
    assert report.findings == report.notes == report.not_located == []


def test_another_eps_is_a_note_with_its_size():
    shape = Shape(6, 0)
    report = deepnet.audit(
        divided(shape, exact_eps=False), defects.inputs(shape), claims="deepnorm"
    )
    assert report.findings == []
    (note,) = report.notes
    assert "eps" in note.what
    assert note.measured == pytest.approx(1e-5, rel=1e-3)
    assert note.expected == pytest.approx(1e-5 / 12**0.5, rel=1e-9)  # alpha^2 = (2 * 6)^(1/2)


@pytest.mark.parametrize("eps", [1e-12, 1e-6, 1e-3])
@pytest.mark.parametrize("rms", [False, True])
def test_an_eps_is_measured_whatever_the_norm_is_made_of(eps, rms):
    shape = Shape(3, 0)
    model = defects.correct(shape, rms=rms)
    for site in model.stacks["encoder"]:
        site.norm = OwnNorm(eps, centred=not rms)
    report = deepnet.audit(model, defects.inputs(shape), claims="deepnorm")
    assert report.findings == []
    (note,) = report.notes
    assert note.measured == pytest.approx(eps, rel=1e-2, abs=1e-14)


class OwnNorm(nn.Module):
    """A norm in separate operations."""

    def __init__(self, eps: float, *, centred: bool) -> None:
        super().__init__()
        self.eps, self.centred = eps, centred
        self.w = nn.Parameter(torch.ones(defects.D))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x - x.mean(-1, keepdim=True) if self.centred else x
        return self.w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0, 1 / (1.05 * 8**0.25)])
def test_a_common_factor_hides_no_wrong_alpha(factor):
    """LN(c alpha' x + c f) with alpha' 5% off; the last is LN(x + f / alpha')."""
    shape = Shape(4, 0)
    wrong = 1.05 * shape.alpha("encoder")
    site = lambda x, norm, f: norm(factor * wrong * x + factor * f(x))  # noqa: E731
    model = defects.draw(defects.Model(shape, encoder=site, decoder=site), shape.beta)
    (finding,) = deepnet.audit(model, defects.inputs(shape), claims="deepnorm").findings
    assert "the skip's scale is another" in finding.what
    assert finding.measured == pytest.approx(wrong)
    assert finding.expected == pytest.approx(shape.alpha("encoder"))


@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_weights_that_make_up_for_too_much_are_found(factor):
    """W_out carries alpha, and another factor besides."""
    shape = Shape(4, 0)
    model = defects.draw(defects.Model(shape, encoder=post(1.0), decoder=post(1.0)), shape.beta)
    with torch.no_grad():
        for site in model.stacks["encoder"]:
            last = site.branch.parts().get("out") or site.branch.parts()["fc2"]
            last[0].mul_(factor / shape.alpha("encoder"))
    assert deepnet.audit(model, defects.inputs(shape), claims="deepnorm").findings != []
    exact = defects.draw(defects.Model(shape, encoder=post(1.0), decoder=post(1.0)), shape.beta)
    with torch.no_grad():
        for site in exact.stacks["encoder"]:
            last = site.branch.parts().get("out") or site.branch.parts()["fc2"]
            last[0].mul_(1 / shape.alpha("encoder"))
    report = deepnet.audit(exact, defects.inputs(shape), claims="deepnorm")
    assert report.findings == []
    assert {"out", "fc2"} == {
        note.where.split(", ")[1].split(" ")[0] for note in report.notes if "std" in note.what
    }


def gelu_folded(factor: float) -> Transformer:
    """A DeepNorm with GELU that has alpha, and another factor, in its last matrices."""
    config = TransformerConfig(
        **SIZES, architecture="encoder_only", encoder_layers=4, decoder_layers=0, activation="gelu"
    )
    model = Transformer(config, load_scheme("deepnorm"))
    assert alpha_in_the_last_matrix(model)
    with torch.no_grad():
        for fc2 in (s.branch.fc2 for s in model.sites() if hasattr(s.branch, "fc2")):
            fc2.weight.mul_(factor)
    return model


@pytest.mark.parametrize(("factor", "passes"), [(1.0, True), (1.3, False)])
def test_a_curved_activation_leaves_the_last_matrix_to_make_up(factor, passes):
    report = deepnet.audit(gelu_folded(factor), torch.randint(2, 50, (2, 7)), claims="deepnorm")
    assert (report.findings == []) == passes


def test_norms_that_begin_with_another_gain_are_found():
    shape = Shape(4, 0)
    model = defects.correct(shape)
    assert deepnet.audit(model, defects.inputs(shape), claims="deepnorm").findings == []
    for site in model.stacks["encoder"]:
        nn.init.constant_(site.norm.weight, 0.5)
    assert deepnet.audit(model, defects.inputs(shape), claims="deepnorm").findings != []


def test_without_a_claim_a_branch_whose_matrix_is_as_much_smaller_is_passed():
    shape = Shape(4, 0)
    site = defects.post_scaled_branch(2.0)
    model = defects.draw(defects.Model(shape, encoder=site, decoder=site), shape.beta)
    assert deepnet.audit(model, defects.inputs(shape)).findings != []
    with torch.no_grad():
        for one in model.stacks["encoder"]:
            last = one.branch.parts().get("out") or one.branch.parts()["fc2"]
            last[0].mul_(0.5)
    assert deepnet.audit(model, defects.inputs(shape)).findings == []
