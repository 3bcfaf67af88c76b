"""The verdict on made-up numbers whose answer is known."""

import math

import pytest

from deepnet.experiments.verdicts import Finding, Verdict, mean_interval, ratio_interval

BELOW_TWO = (1.1, 1.15, 1.2)
ABOVE_TWO = (3.9, 4.0, 4.2)
AROUND_TWO = (1.5, 2.0, 2.5)


def test_the_interval_is_students():
    """t of two degrees of freedom is 4.303 at 97.5%, and the standard deviation of 1, 2, 3 is 1."""
    found = mean_interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.high - found.mean == pytest.approx(4.303 / math.sqrt(3), rel=1e-4)
    assert found.mean - found.low == pytest.approx(4.303 / math.sqrt(3), rel=1e-4)


def test_ratios_are_averaged_as_factors():
    assert ratio_interval([0.5, 2.0]).mean == pytest.approx(1.0)
    doubled, plain = ratio_interval([2.0, 4.0, 8.0]), ratio_interval([1.0, 2.0, 4.0])
    assert doubled.low == pytest.approx(2 * plain.low)
    assert doubled.high == pytest.approx(2 * plain.high)


def test_one_value_says_nothing_of_the_next():
    assert ratio_interval([3.0]).low == 0.0
    assert ratio_interval([3.0]).high == math.inf


@pytest.mark.parametrize(
    "values", [(), (1.0, math.nan, 1.0), (1.0, math.inf, 1.0), (1.0, 0.0, 1.0)]
)
def test_what_is_missing_or_not_finite_has_no_interval(values):
    assert ratio_interval(values) is None


@pytest.mark.parametrize(
    ("values", "below", "above"),
    [
        (BELOW_TWO, "holds", "does not"),
        (ABOVE_TWO, "does not", "holds"),
        (AROUND_TWO, "cannot be told", "cannot be told"),
        (BELOW_TWO[:2], "cannot be told", "cannot be told"),
        ((1.1, 1.15, math.nan), "cannot be told", "cannot be told"),
        ((), "cannot be told", "cannot be told"),
    ],
)
def test_a_finding_is_told_by_its_whole_interval(values, below, above):
    for side, answer in (("below", below), ("above", above)):
        assert Finding(what="x", values=values, limit=2.0, side=side).answer == answer


@pytest.mark.parametrize(
    ("parts", "answer"),
    [
        ((BELOW_TWO, BELOW_TWO), "holds"),
        ((BELOW_TWO, AROUND_TWO), "cannot be told"),
        ((AROUND_TWO, ABOVE_TWO), "does not"),
        ((), "cannot be told"),
    ],
)
def test_a_claim_holds_where_all_its_parts_do(parts, answer):
    findings = [Finding(what="x", values=v, limit=2.0, side="below") for v in parts]
    assert Verdict(tuple(findings)).answer == answer


def test_a_finding_in_words_has_its_numbers():
    told = Finding(what="the update", values=ABOVE_TWO, limit=2.0, side="below").sentence()
    assert told.startswith("the update: 4.03 (3.")
    assert told.endswith("3 seeds; claimed below 2: does not")
    alone = Finding(what="the update", values=(3.0,), limit=2.0, side="below").sentence()
    assert alone == "the update: 3, 1 seed; claimed below 2: cannot be told"


def test_the_interval_of_one_seed_is_no_number_for_machines():
    verdict = Verdict((Finding(what="x", values=(3.0,), limit=2.0, side="below"),))
    (finding,) = verdict.to_dict()["findings"]
    assert finding["interval"]["low"] == 0.0
    assert finding["interval"]["high"] is None
    assert finding["interval"]["num_seeds"] == 1


def test_a_verdict_for_machines_has_no_number_that_json_lacks():
    verdict = Verdict((Finding(what="x", values=(math.nan, 1.0), limit=2.0, side="below"),))
    assert verdict.to_dict() == {
        "answer": "cannot be told",
        "findings": [
            {
                "what": "x",
                "claimed": "below 2",
                "values": [None, 1.0],
                "interval": None,
                "answer": "cannot be told",
            }
        ],
    }
