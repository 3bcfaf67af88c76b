"""Learning rates by their closed forms."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepnet.errors import ConfigError
from deepnet.training.config import ScheduleConfig
from deepnet.training.schedules import learning_rate, resolve_schedule


def rates(config, *steps, peak=5e-4):
    return [learning_rate(step, peak=peak, config=config) for step in steps]


def test_inverse_sqrt_warms_up_from_the_initial_rate_and_then_decays():
    config = ScheduleConfig(name="inverse_sqrt", warmup_steps=4000, warmup_init_lr=1e-7)
    found = rates(config, 0, 2000, 4000, 16000, 36000)
    assert found == pytest.approx([1e-7, (5e-4 + 1e-7) / 2, 5e-4, 2.5e-4, 5e-4 / 3], rel=1e-12)


def test_inverse_sqrt_without_warmup_starts_at_the_peak():
    config = ScheduleConfig(name="inverse_sqrt", warmup_steps=0)
    assert rates(config, 0, 1, 4) == [5e-4, 5e-4, 2.5e-4]


def test_inverse_sqrt_does_not_fall_below_its_minimum():
    config = ScheduleConfig(name="inverse_sqrt", warmup_steps=1, min_lr=1e-4)
    assert rates(config, 10**6) == [1e-4]


def test_linear_reaches_its_minimum_at_the_end_and_stays():
    config = ScheduleConfig(name="linear", warmup_steps=100, decay_steps=1100, min_lr=1e-4)
    assert rates(config, 100, 600, 1100, 9999) == pytest.approx([5e-4, 3e-4, 1e-4, 1e-4])


def test_cosine_is_half_way_in_the_middle():
    config = ScheduleConfig(name="cosine", warmup_steps=0, decay_steps=1000)
    expected = [5e-4, 5e-4 * (1 + math.cos(math.pi / 4)) / 2, 2.5e-4, 0.0, 0.0]
    assert rates(config, 0, 250, 500, 1000, 2000) == pytest.approx(expected, abs=1e-18)


def test_constant_stays_at_the_peak():
    assert rates(
        ScheduleConfig(name="constant", warmup_steps=2, warmup_init_lr=0), 1, 2, 10**6
    ) == [
        2.5e-4,
        5e-4,
        5e-4,
    ]


@given(
    name=st.sampled_from(["inverse_sqrt", "linear", "cosine", "constant"]),
    warmup=st.integers(0, 50),
    step=st.integers(0, 500),
)
def test_no_rate_is_above_the_peak_and_none_jumps_up_after_warmup(name, warmup, step):
    config = resolve_schedule(ScheduleConfig(name=name, warmup_steps=warmup), max_steps=200)
    now, following = rates(config, step, step + 1)
    assert 0 <= now <= 5e-4 * (1 + 1e-12)
    if step >= warmup:
        assert following <= now * (1 + 1e-12)


def test_an_end_comes_from_max_steps_and_only_where_it_matters():
    linear = ScheduleConfig(name="linear", warmup_steps=10)
    assert resolve_schedule(linear, max_steps=50).decay_steps == 50
    constant = ScheduleConfig(name="constant")
    assert resolve_schedule(constant, max_steps=50) == constant
    for max_steps in (0, 10):
        with pytest.raises(ConfigError, match=r"schedule\.decay_steps"):
            resolve_schedule(linear, max_steps=max_steps)
