"""Learning rates that fall towards the end of a run limited by epochs or minutes, on a clock of the test's own."""

import itertools
import json
import math
import os
import signal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepnet.errors import ConfigError
from deepnet.record import read_jsonl
from deepnet.seal import SUMS_FILE
from deepnet.training.checkpoint.folder import latest_checkpoint
from deepnet.training.config import ScheduleConfig, TrainingConfig
from deepnet.training.guard.config import GuardConfig
from deepnet.training.optimization.schedules import Annealing, Moment, learning_rate, resolve_end
from deepnet.training.sinks.progress import format_record
from deepnet.training.state import TrainingState

PEAK = 1e-2


class Time:
    """A clock that stands still until an update or a validation takes its seconds."""

    def __init__(self, *, start=0.0, takes=lambda step: 1.0):
        self.now, self.takes = start, takes

    def __call__(self):
        return self.now

    def after_update(self, model, step):
        self.now += self.takes(step)


def train(toy, name="run", *, time=None, schedule=None, after=None, **other):
    """Train with linear annealing and a warm-up of 4 updates, on a clock that adds a second per update."""
    time = time or Time()

    def after_update(model, step):
        time.after_update(model, step)
        if after:
            after(model, step)

    schedule = {"name": "linear", "warmup_steps": 4, **(schedule or {})}
    settings = {"max_steps": 0, "schedule": schedule, "after_update": after_update, **other}
    return toy.train(name, clock=time, **settings)


def rates(toy, run):
    return [record["lr"] for record in toy.records(run)]


def interrupt_at(step):
    def after(model, now):
        if now == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return after


def test_half_of_the_minutes_after_the_warmup_linear_is_at_half_the_peak(toy):
    _, _, run = train(toy, max_minutes=1, schedule={"warmup_steps": 20})
    found = rates(toy, run)
    assert len(found) == 61
    assert found[:21] == pytest.approx([1e-7 + (PEAK - 1e-7) * step / 20 for step in range(21)])
    assert found[40] == pytest.approx(PEAK / 2)
    assert found[20:] == pytest.approx([PEAK * (60 - step) / 40 for step in range(20, 61)])
    assert found[-1] == 0.0


def test_cosine_ends_at_its_minimum_with_the_minutes(toy):
    schedule = {"name": "cosine", "warmup_steps": 0, "min_lr": 1e-3}
    _, _, run = train(toy, max_minutes=0.5, schedule=schedule)
    found = rates(toy, run)
    quarter = 1e-3 + 9e-3 * (1 + math.sqrt(0.5)) / 2
    assert [found[0], found[15], found[30]] == pytest.approx([PEAK, 5.5e-3, 1e-3])
    assert 0.5 * (found[7] + found[8]) == pytest.approx(quarter, rel=1e-2)


@pytest.mark.parametrize("name", ["linear", "cosine"])
@pytest.mark.parametrize("limit", [{"max_epochs": 4}, {"max_minutes": 28 / 60}])
def test_at_an_even_speed_epochs_and_minutes_give_the_curve_of_as_many_updates(toy, name, limit):
    schedule = {"name": name, "min_lr": 1e-4}
    _, _, steps = train(toy, "steps", max_steps=28, schedule=schedule)
    _, _, other = train(toy, "other", schedule=schedule, **limit)
    assert rates(toy, other)[:28] == pytest.approx(rates(toy, steps), rel=1e-9)


def test_epochs_end_the_curve_where_they_end_the_run(toy):
    result, _, run = train(toy, max_epochs=2, schedule={"warmup_steps": 3})
    assert (result.stopped, result.step) == ("max_epochs", 14)
    assert rates(toy, run)[3:] == pytest.approx([PEAK * (14 - step) / 11 for step in range(3, 14)])


@pytest.mark.parametrize(
    ("limits", "end"),
    [
        ({"max_steps": 20, "max_epochs": 100, "max_minutes": 10}, 20),
        ({"max_steps": 900, "max_epochs": 3, "max_minutes": 10}, 21),
        ({"max_steps": 900, "max_epochs": 100, "max_minutes": 0.5}, 30),
    ],
)
def test_the_nearest_limit_is_the_end(toy, limits, end):
    _, _, run = train(toy, **limits)
    expected = [PEAK * (end - step) / (end - 4) for step in range(4, end)]
    assert rates(toy, run)[4:end] == pytest.approx(expected)


def test_with_max_steps_alone_the_schedule_is_what_it_was():
    schedule = ScheduleConfig(name="cosine", warmup_steps=10)
    resolved, annealing = resolve_end(schedule, TrainingConfig(max_steps=50), updates_per_epoch=7)
    assert resolved == schedule.model_copy(update={"decay_steps": 50})
    assert annealing.keys == []


@pytest.mark.parametrize(
    "schedule", [{"name": "linear", "decay_steps": 9}, {"name": "inverse_sqrt"}]
)
def test_a_curve_with_an_end_of_its_own_or_none_does_not_look_at_the_clock(toy, schedule):
    _, _, run = train(toy, "timed", max_steps=20, max_minutes=10, schedule=schedule)
    _, _, other = train(toy, "steps", max_steps=20, schedule=schedule)
    assert rates(toy, run) == rates(toy, other)


@pytest.mark.parametrize("warmup", [14, 20])
def test_epochs_that_end_inside_the_warmup_are_refused_with_their_updates(toy, warmup):
    with pytest.raises(ConfigError) as error:
        train(toy, max_epochs=2, schedule={"warmup_steps": warmup})
    for part in ("training.max_epochs = 2", "14 updates", f"warmup_steps is {warmup}", "lower it"):
        assert part in str(error.value)


def test_a_warmup_that_the_minutes_do_not_suffice_for_falls_from_half_of_them_on(toy):
    _, _, run = train(toy, max_minutes=1, schedule={"warmup_steps": 50, "warmup_init_lr": 0.0})
    line = [PEAK * step / 50 for step in range(61)]
    fall = [PEAK * (60 - step) / 30 for step in range(61)]
    expected = [min(pair) for pair in zip(line, fall, strict=True)]
    assert rates(toy, run) == pytest.approx(expected)


@given(
    seconds=st.lists(st.floats(0.01, 9.0), min_size=5, max_size=60),
    warmup=st.integers(0, 40),
    name=st.sampled_from(["linear", "cosine"]),
)
def test_whatever_the_speed_no_rate_rises_after_the_warmup_and_the_last_is_the_lowest(
    seconds, warmup, name
):
    config = ScheduleConfig(name=name, warmup_steps=warmup, min_lr=1e-5)
    annealing = Annealing(max_minutes=sum(seconds) / 60)
    now, warmed_up, found = 0.0, None, []
    for step, takes in enumerate([*seconds, 0.0]):
        moment = Moment(0.0, now)
        warmed_up = moment if step == warmup else warmed_up
        annealed = annealing.progress(moment, warmed_up=warmed_up)
        found.append(learning_rate(step, peak=5e-4, config=config, annealed=annealed))
        now += takes
    after = found[warmup:]
    assert all(later <= earlier + 1e-18 for earlier, later in itertools.pairwise(after))
    assert max(found) <= 5e-4
    if warmup <= len(seconds):
        assert found[-1] == pytest.approx(1e-5)


def test_a_run_that_slows_down_falls_with_the_time_it_takes(toy):
    time = Time(takes=lambda step: 1.0 if step <= 10 else 5.0)
    _, _, run = train(toy, time=time, max_minutes=1, schedule={"warmup_steps": 0})
    used = [*range(11), *range(15, 61, 5)]
    assert rates(toy, run) == pytest.approx([PEAK * (60 - seconds) / 60 for seconds in used])


def test_a_validation_uses_the_time_too(toy):
    time = Time()

    def validate(model, step):
        time.now += 16.0
        return {"loss": 1.0}

    _, _, run = train(
        toy, time=time, max_minutes=0.5, validate=validate, validate_every=8,
        schedule={"warmup_steps": 0},
    )  # fmt: skip
    assert rates(toy, run)[7:9] == pytest.approx([PEAK * 23 / 30, PEAK * 6 / 30])


def test_an_epoch_longer_than_the_first_is_never_seen_as_over():
    state = TrainingState(epoch=1, update=12)
    assert state.moment(seconds=0.0, updates_per_epoch=10).epochs == 2.0


@pytest.mark.parametrize("stop_at", [1, 3, 4, 5, 13, 27])
@pytest.mark.parametrize("limit", [{"max_epochs": 4}, {"max_minutes": 0.5}])
def test_an_interrupted_run_has_the_rates_and_weights_of_one_that_is_not(toy, limit, stop_at):
    time = Time(takes=lambda step: 0.75 + step % 3 / 4)
    settings = {"ema_decay": 0.9, **limit}

    def validate_on(time):
        def validate(model, step):
            time.now += 2.5
            return {"loss": float(sum(p.sum() for p in model.parameters()))}

        return {"validate": validate, "validate_every": 6}

    _, whole, whole_run = train(toy, "whole", time=time, **settings, **validate_on(time))
    # at the latest such that one update is left, for which the minutes have run out
    stop_at = min(stop_at, toy.records(whole_run)[-1]["step"] - 2)
    first = Time(start=1024.0, takes=time.takes)
    result, _, _ = train(
        toy, "parts", time=first, after=interrupt_at(stop_at), **settings, **validate_on(first)
    )
    assert (result.stopped, result.step) == ("interrupted", stop_at + 1)
    second = Time(start=16.0, takes=time.takes)
    _, parts, run = train(toy, "parts", time=second, resume=True, **settings, **validate_on(second))
    shown = ("step", "lr", "loss", "seconds", "progress", "validation_loss")
    found = [[[one.get(key) for key in shown] for one in toy.records(r)] for r in (whole_run, run)]
    assert found[0] == found[1]
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.equal(one, other)


class Spoilt:
    """Fifteen updates an epoch, of which the last one of epoch 4, the 75th in all, is not a number."""

    def __init__(self, toy):
        self.listed = toy.updates(15).listed
        bad = toy.updates(1).listed[0]
        for batch in bad.batches:
            batch.x[0, 0] = math.nan
        self.with_bad = [*self.listed[:-1], bad]

    def updates(self, epoch, start=0):
        return iter((self.with_bad if epoch == 4 else self.listed)[start:])

    def updates_per_epoch(self, epoch):
        return 15


@pytest.mark.parametrize(("limit", "used"), [({"max_epochs": 8}, 75), ({"max_minutes": 2}, 74)])
@pytest.mark.parametrize(("save_every", "back_to", "begin"), [(10, 20, 4), (1000, 0, 60)])
def test_a_run_that_goes_back_does_not_go_back_in_its_rate(
    toy, limit, used, save_every, back_to, begin
):
    seen = []
    _, _, run = train(
        toy,
        loader=Spoilt(toy),
        save_every=save_every,
        guard=GuardConfig(nan="roll_back"),
        optimizer={"name": "sgd", "lr": 1e-3},
        sinks=[lambda record: seen.append((record["step"], record["lr"]))],
        **limit,
    )
    [incident] = read_jsonl(run.incidents_path)
    assert (incident["step"], incident["back_to"]) == (75, back_to)
    # the fall goes on with the data and the time used, and meets a warm-up that begins again
    fall = [1e-3 * (120 - now) / (120 - begin) for now in range(used, 120)]
    line = [1e-7 + (1e-3 - 1e-7) * step / 4 for step in range(4)]
    if back_to == 0:
        fall[:4] = map(min, fall, line)
    after = [lr for _, lr in seen[74:]]
    assert after[: len(fall)] == pytest.approx(fall)
    assert after[len(fall) :] == ([0.0] if "max_minutes" in limit else [])


def test_a_longer_warmup_stays_below_the_fall(toy):
    seen = []
    train(
        toy,
        loader=Spoilt(toy),
        save_every=10,
        max_epochs=8,
        guard=GuardConfig(nan="lengthen_warmup"),
        optimizer={"name": "sgd", "lr": 1e-3},
        sinks=[lambda record: seen.append((record["step"], record["lr"]))],
    )
    line = [1e-7 + (1e-3 - 1e-7) * step / 200 for step in range(20, 65)]
    fall = [1e-3 * (120 - now) / 116 for now in range(75, 120)]
    expected = [min(pair) for pair in zip(line, fall, strict=True)]
    assert [lr for _, lr in seen[74:]] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("began", "goes_on", "named"),
    [
        ({"max_epochs": 2}, {"max_epochs": 3}, "'training.max_epochs' was 2 and is now 3"),
        ({"max_minutes": 1}, {"max_minutes": 2}, "'training.max_minutes' was 1.0 and is now 2.0"),
        ({"max_minutes": 1}, {"max_minutes": 1, "max_steps": 99}, "'training.max_steps' was 0"),
        ({"max_epochs": 2}, {"max_epochs": 2, "max_minutes": 9}, "'training.max_minutes' was 0.0"),
    ],
)
def test_a_limit_that_the_rate_falls_towards_cannot_be_changed(toy, began, goes_on, named):
    train(toy, **began)
    with pytest.raises(ConfigError) as error:
        train(toy, resume=True, **goes_on)
    told, may_change = str(error.value).split("What may change:")
    assert named in told
    assert "leave training.max_steps, training.max_epochs and training.max_minutes" in told
    assert "training.max" not in may_change
    assert "annealing" not in told


def test_a_curve_cannot_lose_its_minutes_on_the_way(toy):
    train(toy, max_steps=20, max_minutes=0.125)
    schedule = {"decay_steps": 20}
    with pytest.raises(ConfigError, match=r"'annealing\.towards' was \['training\.max_minutes'\]"):
        train(toy, resume=True, max_steps=20, max_minutes=0.125, schedule=schedule)


def test_limits_may_change_where_the_rate_does_not_fall_towards_them(toy):
    schedule = {"name": "inverse_sqrt"}
    train(toy, max_minutes=0.125, schedule=schedule)
    result, _, _ = train(toy, resume=True, max_epochs=2, max_minutes=9, schedule=schedule)
    assert (result.stopped, result.step) == ("max_epochs", 14)


def test_a_checkpoint_of_an_earlier_version_goes_on_along_the_curve_it_began(toy):
    limits = {"max_steps": 20, "max_minutes": 0.25}
    train(toy, after=interrupt_at(5), **limits)
    path = latest_checkpoint(toy.folder / "run" / "checkpoints")
    (path / SUMS_FILE).unlink()
    file = path / "state.json"
    header = json.loads(file.read_text())
    del header["settings"]["annealing"], header["state"]["seconds_since"]
    del header["state"]["warmed_up"]
    file.write_text(json.dumps(header))
    result, _, run = train(toy, resume=True, **limits)
    step = header["state"]["step"]
    assert result.stopped == "max_minutes"
    assert rates(toy, run)[step:] == pytest.approx(
        [PEAK * (20 - now) / 16 for now in range(step, result.step)]
    )


def test_the_time_left_is_what_the_minutes_leave(toy):
    _, _, run = train(toy, max_minutes=10, max_epochs=100)
    record = toy.records(run)[60]
    assert (record["seconds"], record["progress"]) == (60.0, 0.1)
    assert "9:00 left" in format_record(record)
