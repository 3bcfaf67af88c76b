"""Learning rates by their closed forms."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepnet.errors import ConfigError
from deepnet.training.config import ScheduleConfig
from deepnet.training.optimization.schedules import (
    Annealing,
    Moment,
    learning_rate,
    lengthened_warmup,
    resolve_schedule,
)


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


@pytest.mark.parametrize(
    ("warmup", "decay", "factor", "expected"),
    [(10, 0, 2.0, 200), (400, 0, 1.5, 600), (400, 500, 2.0, 499), (10, 0, 1.0, 10)],
)
def test_a_longer_warmup_counts_from_100_updates_and_ends_before_the_curve(
    warmup, decay, factor, expected
):
    name = "linear" if decay else "inverse_sqrt"
    config = ScheduleConfig(name=name, warmup_steps=warmup, decay_steps=decay, warmup_init_lr=1e-4)
    found = lengthened_warmup(config, factor)
    assert (found.warmup_steps, found.decay_steps) == (expected, decay)
    assert found.warmup_init_lr == (1e-4 if factor == 1.0 else 1e-7)
    lower = config.model_copy(update={"warmup_init_lr": 0.0})
    assert lengthened_warmup(lower, factor).warmup_init_lr == 0.0


def test_a_fall_is_measured_from_the_end_of_the_warmup_to_the_nearest_limit():
    both = Annealing(max_epochs=10, max_minutes=10)
    over = Moment(epochs=2.0, seconds=100.0)
    assert both.progress(Moment(2.0, 100.0), warmed_up=over) == 0.0
    assert both.progress(Moment(4.0, 350.0), warmed_up=over) == pytest.approx(0.5)
    assert both.progress(Moment(8.0, 350.0), warmed_up=over) == pytest.approx(0.75)
    # before the warm-up is over, the fall begins at half of either limit
    assert both.progress(Moment(5.0, 300.0), warmed_up=None) == 0.0
    assert both.progress(Moment(5.0, 450.0), warmed_up=None) == pytest.approx(0.5)
    assert both.progress(Moment(7.5, 0.0), warmed_up=None) == pytest.approx(0.5)
    assert both.progress(Moment(99.0, 0.0), warmed_up=over) == 1.0
    assert Annealing().progress(Moment(99.0, 9e9), warmed_up=over) == 0.0


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_an_annealed_warmup_is_the_lower_of_both_lines(name):
    config = ScheduleConfig(name=name, warmup_steps=100, warmup_init_lr=0.0, min_lr=1e-4)
    half = 3e-4  # half-way from 5e-4 to 1e-4, of either curve
    found = [
        learning_rate(step, peak=5e-4, config=config, annealed=0.5) for step in (20, 60, 90, 100)
    ]
    assert found == pytest.approx([1e-4, half, half, half])
    assert learning_rate(90, peak=5e-4, config=config) == pytest.approx(4.5e-4)


def test_the_nearer_of_steps_and_limits_decides():
    config = ScheduleConfig(name="linear", warmup_steps=100, decay_steps=1100)
    found = [learning_rate(600, peak=1.0, config=config, annealed=a) for a in (0.2, 0.5, 0.75)]
    assert found == pytest.approx([0.5, 0.5, 0.25])
