"""Published mistakes are found, each by a finding that says what it is; models without them are passed."""

import defects
import pytest
import torch
from defects import DEFECTS, Defect, Shape

import deepnet


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: f"{one.package}: {one.mistake}")
def test_a_published_mistake_is_found(defect: Defect):
    report = deepnet.audit(
        defect.build(defect.shape), defects.inputs(defect.shape), claims=defect.claims
    )
    assert any(finding.where.startswith(defect.where) for finding in report.findings)
    assert [f for f in report.findings if defect.says not in f.what] == []  # of nothing else


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: f"{one.package}: {one.mistake}")
def test_without_a_claim_only_what_no_scheme_does_is_found(defect: Defect):
    report = deepnet.audit(defect.build(defect.shape), defects.inputs(defect.shape))
    no_scheme = (defects.branch_scaled, defects.silently_pre_norm, defects.alpha_before_pre_norm)
    assert bool(report.findings) == (defect.build in no_scheme)


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"rms": True}, {"gated": True}])
@pytest.mark.parametrize("shape", [Shape(2, 2), Shape(5, 3), Shape(4, 0), Shape(0, 4)], ids=str)
def test_a_correct_model_is_passed(shape, options):
    report = deepnet.audit(
        defects.correct(shape, **options), defects.inputs(shape), claims="deepnorm"
    )
    assert report.findings == []
    assert report.not_located == []
    assert len(report.sites) == 2 * shape.n + (3 if shape.n else 2) * shape.m


def test_no_seed_of_20_gives_a_false_finding():
    for seed in range(20):
        torch.manual_seed(seed)
        shape = Shape(2, 3)
        report = deepnet.audit(defects.correct(shape), defects.inputs(shape), claims="deepnorm")
        assert report.findings == []


def test_a_mistake_leaves_the_rest_without_findings():
    shape = Shape(4, 4)
    report = deepnet.audit(
        defects.vocabulary_scaled(shape), defects.inputs(shape), claims="deepnorm"
    )
    (finding,) = report.findings
    assert finding.where == "last.weight"
    assert finding.expected == pytest.approx(defects.D**-0.5)
    assert finding.measured == pytest.approx(defects.D**-0.5 * shape.beta("decoder"), rel=0.03)
