"""The guard: what it calls trouble, where it says that trouble began, and what the loop then does."""

import copy
import json
import math
import os
import signal

import pytest
import torch
from torch import nn

from deepnet.errors import DivergenceError
from deepnet.probes.norm_input import NormInputs
from deepnet.probes.place import Place
from deepnet.record import read_jsonl
from deepnet.schemes.catalogue import load_scheme
from deepnet.training.batches import ListedUpdate, ListedUpdates
from deepnet.training.checkpoint.folder import list_checkpoints
from deepnet.training.config import ScheduleConfig
from deepnet.training.engine.base import gradient_norms
from deepnet.training.guard.config import GuardConfig
from deepnet.training.guard.judge import Guard
from deepnet.training.guard.signals import Signals, Watched
from deepnet.training.optimization.schedules import learning_rate, lengthened_warmup
from deepnet.transformer.models import Transformer, TransformerConfig

PLACES = [
    Place("", 0, "embedding"),
    *(Place("encoder", layer, "ffn", role) for layer in (1, 2, 3) for role in ("fc1", "fc2")),
]
SITES = [Place("encoder", layer, "ffn") for layer in (1, 2, 3)]


def seen(step, *, loss=3.0, gradients=None, inputs=(1.0, 1.0, 1.0), norm=None):
    gradients = torch.ones(len(PLACES)) if gradients is None else torch.tensor(gradients)
    total = float(gradients.norm()) if norm is None else norm
    return Signals(
        step=step,
        lr=1e-3,
        loss=loss,
        gradient_norm=total,
        gradients=gradients,
        norm_inputs=torch.tensor(inputs),
    )


def guard(**config):
    parameters = [Watched(place, True) for place in PLACES]
    return Guard(GuardConfig(**config), parameters=parameters, norm_inputs=SITES)


def calm(judge, updates=20):
    """Let a guard see so many updates that are a little noisy, and return the step of the next one."""
    for step in range(1, updates + 1):
        assert judge(seen(step, loss=3.0 + 0.1 * math.sin(step))) is None
    return updates + 1


def only(index, value, others=1.0):
    return [value if i == index else others for i in range(len(PLACES))]


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        ({"loss": 4.7}, "spike"),
        ({"gradients": only(3, 20.0)}, "spike"),
        ({"inputs": (1.0, 4.5, 1.0)}, "spike"),
        ({"loss": math.nan}, "nan"),
        ({"gradients": only(3, math.inf)}, "nan"),
    ],
)
def test_one_update_that_stands_out_is_named_by_its_kind(trouble, kind):
    one = guard(nan="skip")
    verdict = one.judge(seen(calm(one.judge), **trouble))
    assert verdict.kind == kind


@pytest.mark.parametrize(
    "usual", [{"loss": 3.25}, {"gradients": only(3, 8.0)}, {"inputs": (1.0, 3.9, 1.0)}]
)
def test_an_update_within_the_thresholds_is_no_incident(usual):
    one = guard()
    assert one.judge(seen(calm(one.judge), **usual)) is None


def test_the_first_updates_are_compared_with_nothing():
    one = guard()
    assert all(one.judge(seen(step, loss=3.0 + step)) is None for step in range(1, 9))


def test_ten_skipped_updates_in_a_row_are_an_explosion_and_two_incidents():
    one = guard(spike="skip", explosion="stop")
    start = calm(one.judge)
    verdicts = [one.judge(seen(start + n, loss=9.0)) for n in range(10)]
    assert [v.kind for v in verdicts] == ["spike"] * 9 + ["explosion"]
    assert [v.is_new for v in verdicts] == [True] + [False] * 8 + [True]
    assert verdicts[-1].action == "stop"


def test_a_median_of_50_losses_a_spread_above_the_lowest_is_an_explosion():
    one = guard(explosion="stop")
    start = calm(one.judge, updates=100)
    losses = [min(3.0 + 0.1 * n, 5.0) for n in range(80)]
    told = [bool(one.judge(seen(start + n, loss=loss))) for n, loss in enumerate(losses)]
    # calm losses are within 0.1 of 3: half of the last 50 are above 3.2 when 26 from n = 3 on are among them
    assert told.index(True) == pytest.approx(3 + 26, abs=2)


def test_a_nan_on_a_high_loss_is_still_a_nan():
    one = guard(nan="skip", explosion="off")
    start = calm(one.judge, updates=100)
    for n in range(80):
        one.judge(seen(start + n, loss=min(3.0 + 0.1 * n, 5.0)))
    assert one.judge(seen(start + 80, loss=math.nan)).action == "skip"


def test_a_layer_that_no_gradient_reaches_for_ten_updates_is_a_plateau_there():
    one = guard(plateau="stop")
    vanishing = [1.0, 1.0, 1.0, 1e-6, 1e-6, 1.0, 1.0]
    verdicts = [one.judge(seen(step, gradients=vanishing)) for step in range(1, 11)]
    assert verdicts[:9] == [None] * 9
    assert (verdicts[9].kind, verdicts[9].where) == ("plateau", Place("encoder", 2))


def test_a_frozen_layer_is_no_plateau():
    parameters = [Watched(place, place.layer != 2) for place in PLACES]
    one = Guard(GuardConfig(plateau="stop"), parameters=parameters, norm_inputs=SITES)
    frozen = [1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    assert all(one.judge(seen(step, gradients=frozen)) is None for step in range(1, 31))


def test_a_warning_is_given_again_only_after_fifty_updates_without_trouble():
    one = guard()
    vanishing = [1.0, 1.0, *([1e-6] * 5)]
    spells = [True] * 120 + [False] * 30 + [True] * 20 + [False] * 60 + [True] * 20
    told = [
        one.judge(seen(step, gradients=vanishing if is_bad else None))
        for step, is_bad in enumerate(spells, start=1)
    ]
    assert [step for step, verdict in enumerate(told, start=1) if verdict] == [10, 240]


@pytest.mark.parametrize(
    ("trouble", "where"),
    [
        ({"gradients": only(5, math.nan)}, "encoder.3.ffn.fc1"),
        ({"gradients": [math.nan] * 4 + [1.0] * 3}, "encoder.2.ffn.fc1"),
        ({"loss": math.nan, "inputs": (1.0, math.nan, math.nan)}, "encoder.2.ffn"),
        ({"gradients": only(4, 30.0)}, "encoder.2.ffn.fc2"),
    ],
)
def test_says_where_trouble_began(trouble, where):
    one = guard(nan="skip")
    verdict = one.judge(seen(calm(one.judge), **trouble))
    assert str(verdict.where) == where


def test_goes_back_to_the_latest_checkpoint_that_trouble_cannot_have_touched():
    one = guard(spike="roll_back")
    one.memory.good_steps = [0, 100, 200]
    assert [one.back_to(step) for step in (105, 149, 150, 249, 250)] == [0, 0, 100, 100, 200]
    assert one.keep_needed(205) == {100, 200}
    assert guard().keep_needed(205) == set()


def test_a_saved_history_judges_as_the_one_it_was_saved_from():
    one, other = guard(), guard()
    step = calm(one.judge)
    other.history.load(one.history.tensors())
    other.memory = copy.deepcopy(one.memory)
    assert [len(g.history.all()) for g in (one, other)] == [20, 20]
    assert other.judge(seen(step, loss=4.7)) == one.judge(seen(step, loss=4.7))


@pytest.mark.parametrize(
    ("warmup", "decay", "factor", "expected"),
    [(0, 0, 2.0, 200), (400, 0, 2.0, 800), (100, 150, 2.0, 149), (0, 0, 1.0, 0)],
)
def test_a_warmup_is_lengthened_within_its_schedule(warmup, decay, factor, expected):
    name = "linear" if decay else "inverse_sqrt"
    config = ScheduleConfig(name=name, warmup_steps=warmup, decay_steps=decay)
    longer = lengthened_warmup(config, factor)
    assert longer.warmup_steps == expected
    assert learning_rate(expected, peak=1.0, config=longer) == 1.0


def test_sees_the_norm_of_every_gradient_and_the_input_of_every_norm():
    torch.manual_seed(0)
    config = TransformerConfig(
        encoder_layers=2, decoder_layers=1, d_model=8, ffn_dim=16, num_heads=2, vocab_size=11
    )
    model = Transformer(config, load_scheme("deepnorm", {}), optimizer_family="adam")
    inputs = NormInputs(model)
    by_hand = []

    def see(_, args):
        by_hand.append(args[0].square().mean().item())

    hooks = [
        module.register_forward_pre_hook(see)
        for module in model.modules()
        if isinstance(module, nn.LayerNorm)
    ]
    ids = torch.randint(2, 10, (2, 5))
    with inputs.open():
        model(ids, None, ids).square().sum().backward()
    for hook in hooks:
        hook.remove()
    sums, counts = inputs.take(torch.device("cpu")).chunk(2)
    assert (sums / counts).tolist() == pytest.approx(by_hand, rel=1e-6)
    assert [str(place) for place in inputs.places][:2] == ["encoder.1.self", "encoder.1.ffn"]
    norms = gradient_norms(model.parameters())
    for norm, parameter in zip(norms, model.parameters(), strict=True):
        assert norm == pytest.approx(parameter.grad.norm().item(), rel=1e-6)


def faulty(toy, number, fault, at):
    """Return updates of which one is at fault: not a number, or counted as one token."""
    updates = list(toy.updates(number).listed)
    if fault == "nan":
        for batch in updates[at].batches:
            batch.x[0, 0] = math.nan
    else:
        updates[at] = ListedUpdate(updates[at].batches, 1)
    return updates


SLOW = {"optimizer": {"name": "sgd", "lr": 1e-3}, "schedule": {"name": "constant"}}


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("fault", ["nan", "spike"])
def test_a_skipped_update_leaves_a_run_as_if_it_had_not_been(toy, fault):
    updates = faulty(toy, 30, fault, 24)
    config = GuardConfig(nan="skip", spike="skip")
    _, guarded, run = toy.train(
        "guarded", loader=ListedUpdates(updates), max_steps=28, guard=config, **SLOW
    )
    spared = ListedUpdates([*updates[:24], *updates[25:]])
    _, expected, other = toy.train("spared", loader=spared, max_steps=28, **SLOW)
    assert torch.equal(weights(guarded), weights(expected))
    losses = [[r["loss"] for r in toy.records(r)] for r in (run, other)]
    assert losses[0] == losses[1]
    (incident,) = read_jsonl(run.incidents_path)
    assert {key: incident[key] for key in ("step", "update", "kind", "action")} == {
        "step": 25,
        "update": 25,
        "kind": fault,
        "action": "skip",
    }
    assert [r["skipped_updates"] for r in toy.records(run)[23:26]] == [0, 1, 0]


def test_rolling_back_trains_on_past_the_data_that_went_wrong(toy):
    updates = faulty(toy, 140, "spike", 74)
    _, guarded, run = toy.train(
        "guarded",
        loader=ListedUpdates(updates),
        max_steps=80,
        save_every=10,
        guard=GuardConfig(spike="roll_back"),
        **SLOW,
    )
    # trouble at update 75 goes back to step 20 and on from update 76
    spared = ListedUpdates([*updates[:20], *updates[75:]])
    _, expected, other = toy.train("spared", loader=spared, max_steps=80, **SLOW)
    assert torch.equal(weights(guarded), weights(expected))
    assert [r["step"] for r in toy.records(run)] == list(range(1, 81))
    losses = [[r["loss"] for r in toy.records(r)] for r in (run, other)]
    assert losses[0] == losses[1]
    (incident,) = read_jsonl(run.incidents_path)
    assert (incident["kind"], incident["back_to"]) == ("spike", 20)
    last = json.loads((run.path / incident["details"]).read_text())
    assert last["steps"] == list(range(26, 76))
    undone = read_jsonl(run.path / "undone.jsonl")
    assert [r["step"] for r in undone] == list(range(21, 75))
    assert {r["incident"] for r in undone} == {1}
    _, _, straight = toy.train("straight", loader=ListedUpdates(updates[:74]), max_steps=74, **SLOW)
    assert [r["loss"] for r in undone] == [r["loss"] for r in toy.records(straight)[20:]]


@pytest.mark.parametrize("stop_at", [22, 67, 74, 75, 76])
def test_a_guarded_run_that_is_interrupted_ends_as_one_that_is_not(toy, stop_at):
    settings = {
        "loader": ListedUpdates(faulty(toy, 140, "spike", 74)),
        "max_steps": 80,
        "save_every": 10,
        "keep_last": 1,
        "guard": GuardConfig(spike="roll_back"),
        **SLOW,
    }
    _, whole, whole_run = toy.train("whole", **settings)
    calls = []

    def interrupt(model, step):
        calls.append(step)
        if len(calls) == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    result, _, _ = toy.train("parts", **settings, after_update=interrupt)
    assert result.stopped == "interrupted"
    _, parts, run = toy.train("parts", **settings, resume=True)
    assert torch.equal(weights(whole), weights(parts))
    assert [r["loss"] for r in toy.records(run)] == [r["loss"] for r in toy.records(whole_run)]
    incidents = [read_jsonl(r.incidents_path) for r in (run, whole_run)]
    assert incidents[0] == incidents[1]
    details = [json.loads((r.path / "incidents/0001.json").read_text()) for r in (run, whole_run)]
    assert details[0] == details[1]
    undone = [read_jsonl(r.path / "undone.jsonl") for r in (run, whole_run)]
    assert undone[0]
    assert [r["loss"] for r in undone[0]] == [r["loss"] for r in undone[1]]


def test_lowering_the_rate_trains_on_with_half_of_it(toy):
    _, _, run = toy.train(
        loader=ListedUpdates(faulty(toy, 140, "spike", 74)),
        max_steps=80,
        save_every=10,
        guard=GuardConfig(spike="lower_lr"),
        **SLOW,
    )
    assert [r["lr"] for r in toy.records(run)][19:21] == [1e-3, 5e-4]


def test_a_run_that_goes_back_too_often_stops(toy):
    updates = faulty(toy, 200, "nan", 30)
    with pytest.raises(DivergenceError, match=r"update 93 of epoch 1"):
        toy.train(
            loader=ListedUpdates(updates[:31] * 9),
            max_steps=100,
            guard=GuardConfig(nan="roll_back", max_recoveries=2),
            **SLOW,
        )
    actions = [one["action"] for one in read_jsonl(toy.folder / "run/incidents.jsonl")]
    assert actions == ["roll_back", "roll_back", "stop"]


def test_a_stopped_run_keeps_its_checkpoints_and_says_what_to_do(toy):
    with pytest.raises(DivergenceError, match=r"guard\.nan = 'roll_back'"):
        toy.train(loader=ListedUpdates(faulty(toy, 30, "nan", 9)))
    steps = [path.name for path in list_checkpoints(toy.folder / "run/checkpoints")]
    assert steps == ["step_00000004", "step_00000008"]
    (incident,) = read_jsonl(toy.folder / "run/incidents.jsonl")
    assert (incident["kind"], incident["loss"]) == ("nan", None)
