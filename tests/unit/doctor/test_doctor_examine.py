"""The doctor on models of anybody's: what trains and what does not, before either is trained."""

import json
from copy import deepcopy

import pytest
import torch
from torch import nn

import deepnet
from deepnet.doctor.trial import Settings, take_steps
from deepnet.errors import ConfigError
from deepnet.training.batches import ListedUpdate
from deepnet.training.config import OptimizerConfig, ScheduleConfig
from deepnet.training.optimization.schedules import learning_rate

SETTINGS = {
    "training": {"max_steps": 1000},
    "optimizer": {"lr": 1e-2},
    "schedule": {"name": "constant", "warmup_steps": 0},
}


def regression():
    """Return a plain model, its batches and a loss; nothing in it is known to deepnet."""
    model = nn.Sequential(
        nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)
    )
    batches = [torch.randn(32, 4) for _ in range(3)]

    def loss(module, x):
        return (module(x) - x.sum(1, keepdim=True).sin()).square().sum()

    return model, batches, loss


def test_a_trial_is_adam_on_the_schedule():
    """Against torch's own optimiser, stepped by hand."""
    model, batches, loss = regression()
    schedule = ScheduleConfig(warmup_steps=4, warmup_init_lr=1e-4)
    twin = deepcopy(model)
    optimizer, expected = torch.optim.Adam(twin.parameters(), betas=(0.9, 0.98)), []
    for step in range(9):
        optimizer.param_groups[0]["lr"] = learning_rate(step, peak=1e-2, config=schedule)
        optimizer.zero_grad()
        value = loss(twin, batches[step % 3]) / 32
        value.backward()
        nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        optimizer.step()
        expected.append(value.item())
    settings = Settings(optimizer=OptimizerConfig(lr=1e-2), schedule=schedule, clip_norm=0.5)
    updates = [ListedUpdate((batches[n % 3],), 32) for n in range(9)]
    found = take_steps(model, updates, steps=9, loss=loss, settings=settings)
    assert found.losses == pytest.approx(expected, rel=1e-5)
    assert found.is_finite


def test_a_model_of_ones_own_that_learns_trains_and_stays_as_it_was():
    model, batches, loss = regression()
    before = deepcopy(model.state_dict())
    found = deepnet.doctor(model, batches, loss, settings=SETTINGS, count=len, steps=60)
    assert (found.verdict, list(found.advice)) == ("trains", [])
    assert found.risk < 0.1
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())
    assert {sign.name for sign in found.signs} == {"not_finite", "loss_regained", "layer_gradient"}


def test_a_rate_that_blows_up_diverges_with_advice_that_names_it():
    model, batches, loss = regression()
    settings = {**SETTINGS, "optimizer": {"name": "sgd", "lr": 1e3}}
    model[1] = model[3] = nn.Identity()  # no bound on what comes out
    found = deepnet.doctor(model, batches, loss, settings=settings, count=len, steps=60)
    assert (found.verdict, found.trial["updates"]) == ("diverges", 60)
    assert found.risk > 0.9
    assert "lower optimizer.lr, now 1000" in found.advice[0]
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert json.loads(text)["verdict"] == "diverges"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 19}, "a trial of 19 updates shows nothing; expected at least 20"),
        ({"batches": []}, "there are no batches"),
        ({"settings": {"optimizer": {"lr": -1.0}}}, "'optimizer.lr' is -1.0"),
        ({"settings": {"data": {}}}, "unknown key 'data'"),
    ],
)
def test_what_cannot_be_examined_is_refused_in_one_line(changes, words):
    model, batches, loss = regression()
    given = {"batches": batches, "settings": SETTINGS, **changes}
    with pytest.raises(ConfigError) as error:
        deepnet.doctor(model, loss=loss, **given)
    assert words in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_layer_that_nothing_uses_is_no_layer_without_gradient():
    class WithTwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(4, 1)
            self.heads = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)])

        def forward(self, x):
            return self.heads[0](self.body(x))

    batches = [torch.randn(32, 4) for _ in range(3)]

    def loss(module, x):
        return (module(x) - x.sum(1, keepdim=True)).square().sum()

    found = deepnet.doctor(WithTwoHeads(), batches, loss, settings=SETTINGS, count=len, steps=60)
    assert {sign.name: sign.excess for sign in found.signs}["layer_gradient"] < 0


def test_batches_may_come_from_a_generator_and_settings_leave_the_limit_out():
    model, batches, loss = regression()
    settings = {**SETTINGS, "training": {"clip_norm": 1.0}}
    found = deepnet.doctor(model, iter(batches), loss, settings=settings, count=len, steps=60)
    assert found.trial["of"] == 60


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"count": lambda batch: 0}, r"count\(batch\) is 0"),
        ({"steps": 50.5}, r"a trial of 50\.5 updates"),
        ({"loss": lambda module, x: module(x)}, r"shape \(32, 1\); expected one number"),
    ],
)
def test_what_cannot_be_judged_is_one_line(changed, message):
    model, batches, loss = regression()
    given = {"loss": loss, "settings": SETTINGS, "count": len, "steps": 60, **changed}
    with pytest.raises(ConfigError, match=message):
        deepnet.doctor(model, batches, **given)
