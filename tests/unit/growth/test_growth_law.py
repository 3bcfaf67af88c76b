"""The law of depth: exact points come back, intervals cover as often as they say, and none is seen where none is."""

import math

import numpy as np
import pytest

from deepnet.errors import ConfigError
from deepnet.growth.law import Point, fit_law

DEPTHS = (6, 12, 24, 50)
PAPER = (Point(12, 24.5), Point(24, 26.2), Point(48, 27.7))
STUDENT_1, STUDENT_10 = 12.706, 2.228
"""The 97.5% points of Student's t, from its tables."""


def test_exact_points_are_recovered():
    law = fit_law([Point(d, 2.5 * math.log(d) - 3.0) for d in DEPTHS], at=[200])
    assert law.slope.value == pytest.approx(2.5, abs=1e-12)
    assert law.intercept.value == pytest.approx(-3.0, abs=1e-12)
    assert law.at[200].value == pytest.approx(2.5 * math.log(200) - 3.0, abs=1e-12)
    assert max(map(abs, law.residuals)) < 1e-12
    assert law.slope.high - law.slope.low < 1e-10
    assert law.objections == ()


def test_the_paper_s_baseline_by_hand():
    """Depths double, so that the slope is half the last less the first, and the residuals are those of its middle."""
    law = fit_law(PAPER, at=[200])
    assert law.per_doubling == pytest.approx((27.7 - 24.5) / 2, abs=1e-12)
    assert law.residuals == pytest.approx([-0.2 / 6, 0.4 / 6, -0.2 / 6], abs=1e-12)
    spread = math.sqrt(sum(r**2 for r in law.residuals))
    error = spread / (math.sqrt(2) * math.log(2))
    assert law.slope.high - law.slope.value == pytest.approx(STUDENT_1 * error, rel=0.05)
    distance = math.log(200 / 24)
    error = spread * math.sqrt(1 + 1 / 3 + distance**2 / (2 * math.log(2) ** 2))
    assert law.at[200].high - law.at[200].value == pytest.approx(STUDENT_1 * error, rel=0.05)
    assert law.curvature is None


def test_intervals_are_student_s_where_noise_is_normal():
    draw = np.random.default_rng(3)
    points = [Point(d, float(draw.normal())) for d in DEPTHS for _ in range(3)]
    x, y = np.log([p.depth for p in points]), np.array([p.value for p in points])
    law = fit_law(points)
    slope, covariance = np.polyfit(x, y, 1, cov=True)
    assert law.slope.value == pytest.approx(slope[0], abs=1e-12)
    half = STUDENT_10 * math.sqrt(covariance[0, 0])
    assert law.slope.high - law.slope.value == pytest.approx(half, rel=0.02)


def test_an_interval_covers_a_known_slope():
    """Of 200 draws 190 should be covered; 3 standard errors of that count are 9."""
    draw = np.random.default_rng(5)
    laws = [
        fit_law([Point(d, 2.0 * math.log(d) + 20.0 + 0.5 * float(draw.normal())) for d in DEPTHS])
        for _ in range(200)
    ]
    covered = sum(law.slope.contains(2.0) for law in laws)
    assert 181 <= covered <= 199


def test_the_interval_of_a_further_run_covers_it():
    draw = np.random.default_rng(7)

    def run(depth):
        return 2.0 * math.log(depth) + 20.0 + 0.5 * float(draw.normal())

    laws = [fit_law([Point(d, run(d)) for d in DEPTHS], at=[200]) for _ in range(200)]
    assert 181 <= sum(law.at[200].contains(run(200)) for law in laws) <= 199


def test_several_seeds_of_a_depth():
    law = fit_law([Point(d, math.log(d) + e) for d in DEPTHS for e in (-0.1, 0.0, 0.1)])
    assert law.slope.value == pytest.approx(1.0, abs=1e-12)
    assert law.residuals == pytest.approx([-0.1, 0.0, 0.1] * 4, abs=1e-12)


def test_two_depths_carry_no_law():
    law = fit_law([Point(200, 31.1), Point(1000, 32.1)])
    assert law.per_doubling == pytest.approx(1.0 / math.log2(5), abs=1e-12)
    assert "2 depths" in law.objections[0]
    assert law.slope.to_dict() == {"value": law.slope.value, "low": None, "high": None}


def test_a_flat_line_carries_no_law():
    law = fit_law([Point(6, 20.0), Point(12, 20.4), Point(24, 19.8), Point(48, 20.1)])
    assert any("contains 0" in objection for objection in law.objections)


@pytest.mark.parametrize(("curvature", "way"), [(-0.5, "down"), (0.5, "up")])
def test_a_parabola_carries_no_law(curvature, way):
    draw = np.random.default_rng(1)
    points = [
        Point(d, 3 * math.log(d) + curvature * math.log(d) ** 2 + 0.01 * float(draw.normal()))
        for d in (*DEPTHS, 100, 200)
    ]
    law = fit_law(points)
    assert law.curvature.contains(curvature)
    assert any(f"bend {way}" in objection for objection in law.objections)


@pytest.mark.parametrize(
    ("points", "at", "words"),
    [
        ([], [], "there is none"),
        ([Point(6, 1.0), Point(6, 2.0)], [], "all have depth 6"),
        ([Point(0, 1.0), Point(6, 2.0)], [], "a depth is 0"),
        ([Point(6, 1.0), Point(12, 2.0)], [-3], "a depth is -3"),
        ([Point(6, math.nan), Point(12, 2.0)], [], "value at depth 6 is nan"),
    ],
)
def test_what_cannot_be_fitted(points, at, words):
    with pytest.raises(ConfigError, match=words):
        fit_law(points, at=at)
