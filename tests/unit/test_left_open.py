"""What a silent section keeps, and what a record without a key means, on sections of a later version."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from deepnet.config import Section
from deepnet.left_open import LeftOpen, as_before, as_recorded, completed_by, is_silent


class Inner(Section):
    width: int = 8
    betas: tuple[float, float] = (0.9, 0.98)


class Shape(Section):
    kind: Annotated[Literal["sine", "turn"], LeftOpen()] = "sine"
    start: Annotated[Literal["auto", "pad", "eos"], LeftOpen(before="pad")] = "auto"
    layers: int = 6
    limit: Annotated[float, Field(ge=0), LeftOpen()] = 0.0


class Whole(Section):
    name: str
    shape: Shape = Shape()
    inner: Inner | None = None


def test_only_what_is_said_is_said():
    shape = Shape(kind="sine", start="auto")
    assert [is_silent(shape, key) for key in ("kind", "start", "limit")] == [False, True, True]


def test_a_mark_leaves_the_bounds_of_a_key_as_they_are():
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        Shape(limit=-1)


def test_a_silent_section_keeps_what_was_decided_and_a_default_that_was_said():
    earlier = Whole(name="a", shape=Shape(kind="turn", start="pad", layers=9, limit=1.0))
    silent = completed_by(Whole(name="b"), earlier)
    assert silent.shape == Shape(kind="turn", start="pad", layers=6, limit=1.0)
    said = completed_by(Whole(name="b", shape=Shape(kind="sine", limit=0.0)), earlier)
    assert (said.shape.kind, said.shape.limit, said.shape.start) == ("sine", 0.0, "pad")
    assert not is_silent(silent.shape, "limit")


def test_a_section_that_the_earlier_one_had_not_stays():
    inner = Inner(width=3)
    assert completed_by(Whole(name="b", inner=inner), Whole(name="a")).inner == inner


def test_a_record_means_the_default_or_what_was_before_and_says_all_of_it():
    recorded = as_recorded(Whole, {"name": "a", "shape": {"layers": 2}, "inner": {"width": 3}})
    whole = Whole(**recorded)
    assert whole.shape == Shape(start="pad", layers=2)
    assert whole.shape.model_fields_set == set(Shape.model_fields)
    assert recorded["inner"] == {"width": 3, "betas": [0.9, 0.98]}


def test_sections_and_needed_keys_that_a_record_lacks_stay_away():
    assert as_recorded(Whole, {}) == {}


def test_what_is_no_section_is_left_to_be_refused():
    assert as_recorded(Whole, {"shape": 3, "odd": 1}) == {"shape": 3, "odd": 1}


def test_earlier_settings_are_compared_without_what_came_later_and_changes_nothing():
    before = {"shape": {"layers": 6}, "inner": {"width": 8}}
    now = {
        "shape": {"kind": "sine", "start": "pad", "layers": 6, "limit": 0.0},
        "inner": {"width": 8, "betas": [0.9, 0.98]},
        "more": {"text": "x"},
    }
    assert as_before(Whole, now, before) == {**before, "more": {"text": "x"}}
    assert as_before(Whole, {"inner": None}, {}) == {}


@pytest.mark.parametrize(("key", "value"), [("start", "eos"), ("limit", 1.0), ("kind", "turn")])
def test_what_came_later_and_changes_something_is_compared(key, value):
    assert as_before(Whole, {"shape": {key: value}}, {"shape": {"layers": 6}}) == {
        "shape": {key: value}
    }


def test_what_earlier_settings_have_is_compared_whatever_it_is():
    assert as_before(Whole, {"shape": {"layers": 6}}, {"shape": {"layers": 7}}) == {
        "shape": {"layers": 6}
    }
