"""A guarded run in awkward moments: trouble after trouble, removed checkpoints, interruptions, no warm-up."""

import math
import os
import signal

import pytest
import torch
from torch import nn

from deepnet.errors import DivergenceError
from deepnet.record import read_jsonl
from deepnet.training.batches import ListedUpdate, ListedUpdates
from deepnet.training.checkpoint.folder import list_checkpoints, read_header
from deepnet.training.checkpoint.selection import select_checkpoints
from deepnet.training.engine.base import gradient_norms
from deepnet.training.guard.config import GuardConfig

SLOW = {"optimizer": {"name": "sgd", "lr": 1e-3}, "schedule": {"name": "constant"}}
ROLLS_BACK = GuardConfig(nan="roll_back")


def spoilt(toy, number, *at):
    """Return so many updates, of which some are not a number."""
    updates = toy.updates(number).listed
    for place in at:
        for batch in updates[place].batches:
            batch.x[0, 0] = math.nan
    return ListedUpdates(updates)


def backs(run):
    return [(one["step"], one["back_to"]) for one in read_jsonl(run.incidents_path)]


@pytest.mark.parametrize("keep_last", [1, 3])
def test_trouble_soon_after_going_back_goes_back_to_the_same_place(toy, keep_last):
    _, _, run = toy.train(
        loader=spoilt(toy, 200, 124, 129),
        max_steps=130,
        save_every=10,
        keep_last=keep_last,
        guard=ROLLS_BACK,
        **SLOW,
    )
    assert backs(run) == [(125, 70), (75, 70)]


def test_a_guard_that_is_switched_on_by_a_resumed_run_has_somewhere_to_go_back_to(toy):
    data = spoilt(toy, 60, 29)
    settings = {"loader": data, "max_steps": 40, "save_every": 5, "keep_last": 1, **SLOW}
    with pytest.raises(DivergenceError, match="nan at step 30"):
        toy.train(**settings)
    result, _, run = toy.train(**settings, resume=True, guard=ROLLS_BACK)
    assert (result.step, backs(run)) == (40, [(30, 25)])


def test_the_best_checkpoint_is_there_after_a_later_best_was_left_behind(toy):
    validated = []

    def validate(model, step):
        validated.append(step)
        early = {10: 1.0, 100: 0.5} if len(validated) <= 12 else {}
        return {"loss": early.get(step, 2.0)}

    _, _, run = toy.train(
        loader=spoilt(toy, 220, 124),
        max_steps=130,
        save_every=10,
        validate_every=10,
        validate=validate,
        keep_last=1,
        guard=ROLLS_BACK,
        **SLOW,
    )
    (chosen,) = select_checkpoints(run.checkpoints, average_last=0)
    assert chosen in list_checkpoints(run.checkpoints)


def test_the_weights_of_before_training_are_not_averaged(toy):
    settings = {"max_steps": 8, "save_every": 4, "guard": ROLLS_BACK}
    _, _, run = toy.train(loader=spoilt(toy, 60), average_last=3, **settings, **SLOW)
    chosen = select_checkpoints(run.checkpoints, average_last=3)
    assert [path.name for path in chosen] == ["step_00000004", "step_00000008"]


def test_half_an_incident_on_disk_is_not_built_upon(toy):
    settings = {"loader": spoilt(toy, 60, 24, 34), "guard": GuardConfig(nan="skip"), **SLOW}
    _, _, run = toy.train(**settings, max_steps=20)
    run.incidents_path.write_bytes(b'{"step": 25, "epo')
    toy.train(**settings, max_steps=30, resume=True)
    toy.train(**settings, max_steps=40, resume=True)
    assert [one["update"] for one in read_jsonl(run.incidents_path)] == [25, 35]


def test_an_interruption_at_a_skipped_update_leaves_no_trace(toy):
    def train(name, *, interrupts):
        fired = []

        def loss(model, batch):
            if interrupts and batch.x.isnan().any() and not fired:
                fired.append(True)
                os.kill(os.getpid(), signal.SIGTERM)
            return toy.loss(model, batch)

        settings = {
            "loader": spoilt(toy, 60, 24, 25, 26),
            "max_steps": 30,
            "log_every": 6,
            "validate_every": 6,
            "validate": lambda model, step: {"loss": 1.0 + step},
            "guard": GuardConfig(nan="skip"),
            **SLOW,
        }
        result, _, run = toy.train(name, loss=loss, **settings)
        if interrupts:
            assert result.stopped == "interrupted"
            _, _, run = toy.train(name, resume=True, **settings)
        shown = ("step", "loss", "skipped_updates", "validation_loss")
        state = read_header(list_checkpoints(run.checkpoints)[-1])["state"]
        return [[one.get(key) for key in shown] for one in toy.records(run)], state.num_worse

    assert train("parts", interrupts=True) == train("whole", interrupts=False)


def test_a_skipped_nan_is_reported_even_right_after_a_spike(toy):
    updates = list(spoilt(toy, 60, 25).listed)
    updates[24] = ListedUpdate(updates[24].batches, 1)
    settings = {"loader": ListedUpdates(updates), "max_steps": 30}
    _, _, run = toy.train(**settings, guard=GuardConfig(nan="skip"), **SLOW)
    told = [(one["kind"], one["action"]) for one in read_jsonl(run.incidents_path)]
    assert told == [("spike", "warn"), ("nan", "skip")]


@pytest.mark.parametrize("warmup_init_lr", [1e-3, 1e-7])
def test_lowering_the_rate_lowers_it_at_every_point_of_the_schedule(toy, warmup_init_lr):
    schedule = {"warmup_steps": 4000, "warmup_init_lr": warmup_init_lr}
    settings = {"optimizer": {"name": "sgd", "lr": 1e-3}, "schedule": schedule, "save_every": 10}
    rates = []
    for name, at in (("calm", ()), ("lowered", (79,))):
        data = spoilt(toy, 120, *at)
        guard = GuardConfig(nan="lower_lr")
        _, _, run = toy.train(name, loader=data, max_steps=90, guard=guard, **settings)
        rates.append(toy.records(run)[-1]["lr"])
    assert rates[1] == pytest.approx(rates[0] / 2)


def test_a_longer_warmup_never_raises_the_rate(toy):
    _, _, run = toy.train(
        loader=spoilt(toy, 500, 254),
        max_steps=260,
        save_every=100,
        guard=GuardConfig(nan="lengthen_warmup"),
        optimizer={"name": "sgd", "lr": 1e-3},
        schedule={"name": "inverse_sqrt", "warmup_steps": 20},
    )
    rates = {one["step"]: one["lr"] for one in toy.records(run)}
    assert rates[201] <= rates[200]


def test_frozen_parameters_of_any_type_have_no_gradient():
    model = nn.Linear(4, 4)
    model.table = nn.Parameter(torch.zeros(3, dtype=torch.int8), requires_grad=False)
    model(torch.randn(2, 4)).sum().backward()
    names = dict(model.named_parameters())
    norms = dict(zip(names, gradient_norms(model.parameters()).tolist(), strict=True))
    assert norms["table"] == 0.0
    assert norms["bias"] == pytest.approx(model.bias.grad.norm().item())
