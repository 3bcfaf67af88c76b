"""The loop: what an update computes, when it stops, what it writes."""

import math
import os
import signal

import pytest
import torch
import torch.nn.functional as F

from deepnet.bundle import read_tensors
from deepnet.errors import CheckpointError, ConfigError, DataError, DivergenceError
from deepnet.record import RunFolder
from deepnet.training.batches import ListedUpdate, ListedUpdates
from deepnet.training.checkpoint.folder import list_checkpoints
from deepnet.training.engine.base import Engine
from deepnet.training.engine.precision import Precision

TIMES = ("seconds", "tokens_per_second", "progress")


def without_times(records):
    return [{k: v for k, v in record.items() if k not in TIMES} for record in records]


def same_weights(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_equals_a_hand_written_loop(toy):
    model = toy.model(dropout=0.0)
    reference = toy.model(dropout=0.0)
    toy.train(model=model, max_steps=5, optimizer={"name": "sgd", "lr": 0.1}, clip_norm=0.5)
    for step, update in enumerate(toy.updates().updates(0)):
        if step == 5:
            break
        lr = 1e-7 + (0.1 - 1e-7) * step / 3 if step < 3 else 0.1 * math.sqrt(3 / step)
        reference.zero_grad()
        x = torch.cat([b.x for b in update.batches])
        y = torch.cat([b.y for b in update.batches])
        (F.cross_entropy(reference(x), y, reduction="sum") / 8).backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        with torch.no_grad():
            for p in reference.parameters():
                p -= lr * p.grad
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_last_micro_batch_of_an_update_alone_sends_gradients(toy, monkeypatch):
    sent, add = [], Engine.add_gradients

    def noting(engine, loss, *, num_tokens, sends):
        sent.append(sends)
        return add(engine, loss, num_tokens=num_tokens, sends=sends)

    monkeypatch.setattr(Engine, "add_gradients", noting)
    toy.train(loader=toy.updates(micro_batches=3), max_steps=2)
    assert sent == [False, False, True] * 2


def test_no_two_micro_batches_have_the_same_dropout(toy):
    seeds = []

    def loss(model, batch):
        seeds.append(torch.initial_seed())
        return toy.loss(model, batch)

    toy.train(loader=toy.updates(micro_batches=3), loss=loss, max_steps=4)
    assert len(set(seeds)) == len(seeds) == 12


def test_accumulating_micro_batches_equals_one_large_batch_in_float64(toy):
    weights = []
    for size in (1, 4):
        batches = toy.batches(1, rows=4, dtype=torch.float64)
        whole = batches[0]
        parts = tuple(
            type(whole)(x, y)
            for x, y in zip(whole.x.split(4 // size), whole.y.split(4 // size), strict=True)
        )
        model = toy.model(dropout=0.0, dtype=torch.float64)
        toy.train(
            f"run{size}", model=model, loader=ListedUpdates([ListedUpdate(parts, 4)]), max_steps=20
        )
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-10, atol=1e-12)


def test_the_gradient_norm_of_a_float64_model_is_a_float64_number(toy):
    batches = toy.batches(1, dtype=torch.float64)
    model, reference = (toy.model(dropout=0.0, dtype=torch.float64) for _ in range(2))
    loader = ListedUpdates([ListedUpdate(tuple(batches), 4)])
    _, _, run = toy.train(model=model, loader=loader, max_steps=1)
    (toy.loss(reference, batches[0]) / 4).backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in reference.parameters()]).item()
    assert toy.records(run)[0]["gradient_norm"] == pytest.approx(norm, rel=1e-12)


def test_records_one_object_per_step_with_the_mean_loss_per_token(toy):
    _, _, run = toy.train(model=toy.model(dropout=0.0))
    records = toy.records(run)
    assert [r["step"] for r in records] == list(range(1, 13))
    assert [r["epoch"] for r in records] == [0] * 6 + [1] * 6
    update = next(iter(toy.updates().updates(0)))
    expected = sum(toy.loss(toy.model(dropout=0.0), b).item() for b in update.batches) / 8
    assert records[0]["loss"] == pytest.approx(expected, rel=1e-6)
    assert records[0]["lr"] == 1e-7
    assert records[3]["lr"] == 1e-2
    assert records[-1]["tokens"] == 12 * 8


def test_a_window_averages_the_steps_it_covers(toy):
    _, _, each = toy.train("each")
    _, _, window = toy.train("window", log_every=4)
    losses = [r["loss"] for r in toy.records(each)]
    assert [r["loss"] for r in toy.records(window)] == pytest.approx(
        [sum(losses[i : i + 4]) / 4 for i in (0, 4, 8)]
    )


@pytest.mark.parametrize("stop_at", [1, 4, 7, 9])
@pytest.mark.parametrize("name", ["adam", "adamw", "radam", "sgd", "adafactor", "muon"])
def test_resuming_equals_never_stopping_bit_for_bit(toy, name, stop_at):
    settings = {"optimizer": {"name": name}, "ema_decay": 0.9, "log_every": 3, "validate_every": 5}
    settings["validate"] = lambda model, step: {
        "loss": float(sum(p.sum() for p in model.parameters()))
    }
    _, whole, whole_run = toy.train("whole", **settings)

    def interrupt(model, step):
        if step == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    result, _, run = toy.train("parts", **settings, after_update=interrupt)
    assert result.stopped == "interrupted"
    assert result.step == stop_at + 1
    result, parts, run = toy.train("parts", **settings, resume=True, model=toy.model(dropout=0.1))
    assert (result.stopped, result.step) == ("max_steps", 12)
    assert same_weights(whole, parts)
    assert without_times(toy.records(run)) == without_times(toy.records(whole_run))
    for name in ("model", "optimizer", "ema"):
        last = [
            list_checkpoints(r.checkpoints)[-1] / f"{name}.safetensors" for r in (whole_run, run)
        ]
        assert last[0].read_bytes() == last[1].read_bytes()


def test_after_an_interruption_in_the_last_update_the_resumed_run_ends_with_the_validation(toy):
    def interrupt(model, step):
        if step == 11:
            os.kill(os.getpid(), signal.SIGTERM)

    settings = {"validate": lambda model, step: {"loss": 1.5}}
    result, _, run = toy.train(after_update=interrupt, **settings)
    assert (result.stopped, result.step, result.best) == ("interrupted", 12, None)
    result, _, run = toy.train(**settings, resume=True)
    assert (result.stopped, result.step, result.best) == ("max_steps", 12, 1.5)
    assert [record["step"] for record in toy.records(run)] == list(range(1, 13))


def test_resuming_restores_the_scaler_of_fp16(toy):
    precision = Precision("fp16", "cpu")  # slow on a CPU, but the same code as on CUDA
    settings = {"precision": precision, "max_steps": 6, "save_every": 3}
    _, whole, _ = toy.train("whole", **settings)
    _, _, run = toy.train("parts", **{**settings, "max_steps": 3})
    _, parts, _ = toy.train("parts", **settings, resume=True)
    assert same_weights(whole, parts)
    header = (list_checkpoints(run.checkpoints)[-1] / "state.json").read_text()
    assert '"scale": 65536.0' in header
    assert '"_growth_tracker": 6' in header


def test_fp16_skips_an_update_whose_gradient_overflows(toy):
    def loss(model, batch):
        return toy.loss(model, batch) * 1e4  # 65536 times that is beyond fp16

    model = toy.model()
    _, _, run = toy.train(model=model, precision=Precision("fp16", "cpu"), loss=loss, max_steps=1)
    assert toy.records(run)[0]["skipped_updates"] == 1
    assert same_weights(model, toy.model())


@pytest.mark.parametrize(
    ("limit", "expected"),
    [({"max_steps": 5}, 5), ({"max_epochs": 2, "max_steps": 0}, 14), ({"max_minutes": 1e-9}, 1)],
)
def test_stops_at_the_first_limit(toy, limit, expected):
    result, _, run = toy.train(**{"max_steps": 100, **limit})
    assert result.step == expected
    assert result.stopped in limit
    assert list_checkpoints(run.checkpoints)[-1].name == f"step_{expected:08d}"


def test_minutes_count_over_sessions_together(toy):
    toy.train(max_steps=2)
    result, _, _ = toy.train(max_steps=0, max_minutes=1e-9, resume=True)
    assert (result.stopped, result.step) == ("max_minutes", 2)


def test_stops_early_and_keeps_the_best_checkpoint(toy):
    figures = {2: 3.0, 4: 1.0, 6: 2.0, 8: 2.0}
    result, _, run = toy.train(
        validate=lambda model, step: {"loss": figures[step]},
        validate_every=2,
        patience=2,
        save_every=1,
        keep_last=1,
    )
    assert (result.stopped, result.step, result.best, result.best_step) == ("patience", 8, 1.0, 4)
    assert [p.name for p in list_checkpoints(run.checkpoints)] == ["step_00000004", "step_00000008"]
    validated = {
        r["step"]: r["validation_loss"] for r in toy.records(run) if "validation_loss" in r
    }
    assert validated == figures


def test_bleu_is_better_when_higher(toy):
    result, _, _ = toy.train(
        validate=lambda model, step: {"loss": 1.0, "bleu": {4: 10.0, 8: 30.0, 12: 20.0}[step]},
        validate_every=4,
        keep_best="bleu",
    )
    assert (result.best, result.best_step) == (30.0, 8)


def test_validates_the_average_in_evaluation_mode(toy):
    weights, seen = [toy.model()[0].weight.detach()], []

    def validate(model, step):
        seen.append((model.training, model[0].weight.detach().clone()))
        return {"loss": 1.0}

    _, model, _ = toy.train(
        validate=validate,
        ema_decay=0.9,
        after_update=lambda model, step: weights.append(model[0].weight.detach().clone()),
    )
    average = weights[0]
    for t, weight in enumerate(weights[1:]):
        decay = min(0.9, (1 + t) / (10 + t))
        average = decay * average + (1 - decay) * weight
    [(training, validated)] = seen
    assert not training
    assert model.training
    torch.testing.assert_close(validated, average)
    assert torch.equal(model[0].weight, weights[-1])


@pytest.mark.parametrize("where", ["loss", "gradient", "weight"])
def test_stops_at_the_step_that_diverges_and_keeps_the_last_good_checkpoint(toy, where):
    calls = []

    def loss(model, batch):
        calls.append(1)
        value = toy.loss(model, batch)
        if len(calls) == 11:  # the first micro-batch of step 6
            if where == "loss":
                return value * math.nan
            if where == "gradient":
                return value + (model[0].weight * 0).sum().sqrt()
        return value

    def spoil(model, step):
        if where == "weight" and step == 8:
            with torch.no_grad():
                model[0].bias[0] = math.inf

    step = "step 8" if where == "weight" else "step 6"
    with pytest.raises(DivergenceError, match=step):
        toy.train(loss=loss, after_update=spoil)
    run = RunFolder.open(toy.folder / "run")
    assert [p.name for p in list_checkpoints(run.checkpoints)] == ["step_00000004"]
    result, _, _ = toy.train(resume=True)
    assert result.step == 12


def test_a_validation_that_is_not_finite_stops_the_run(toy):
    with pytest.raises(DivergenceError, match="validation loss is nan at step 12"):
        toy.train(validate=lambda model, step: {"loss": math.nan})


def test_after_update_sees_every_step_once(toy):
    steps = []
    toy.train(after_update=lambda model, step: steps.append(step))
    assert steps == list(range(1, 13))


def test_recompute_changes_nothing_but_memory(toy):
    plain = toy.model()
    recomputing = toy.model()
    toy.train("plain", model=plain)
    toy.train(
        "recomputing", model=recomputing, recompute=True, blocks=[recomputing[0], recomputing[2]]
    )
    assert same_weights(plain, recomputing)
    assert "forward" not in vars(recomputing[0])


@pytest.mark.parametrize(
    ("key", "value"), [("recompute", True), ("validate_every", 4), ("keep_best", "bleu")]
)
def test_what_needs_something_the_caller_does_not_give_is_refused(toy, key, value):
    with pytest.raises(ConfigError, match=rf"training\.{key} is set, but the caller gives no"):
        toy.train(**{key: value})
    assert not (toy.folder / "run" / "metrics.jsonl").exists()


def test_a_model_is_prepared_once_before_anything_looks_at_it(toy):
    calls = []

    def prepare(model):
        calls.append(model)
        model.eval()
        with torch.no_grad():
            model[0].weight.fill_(3.0)

    def loss(model, batch):
        assert model.training
        return toy.loss(model, batch) * 0

    settings = {"prepare": prepare, "loss": loss, "ema_decay": 0.5}
    _, model, run = toy.train(**settings, max_steps=4)
    assert calls == [model]
    average = read_tensors(list_checkpoints(run.checkpoints)[-1] / "ema.safetensors")
    for weight in (model[0].weight, average["0.weight"]):
        assert torch.equal(weight, torch.full((8, 4), 3.0))
    toy.train(**settings, resume=True)
    assert calls == [model]


def test_resuming_may_extend_a_run_but_not_change_it(toy):
    toy.train()
    result, _, run = toy.train(resume=True, max_steps=15, keep_last=1)
    assert result.step == 15
    assert [r["step"] for r in toy.records(run)] == list(range(1, 16))
    with pytest.raises(ConfigError, match=r"'optimizer\.lr' was 0\.01 and is now 0\.5"):
        toy.train(resume=True, optimizer={"lr": 0.5})
    with pytest.raises(ConfigError, match=r"'data\.path' was 'not set' and is now 'x'"):
        toy.train(resume=True, settings={"data": {"path": "x"}})


def test_extending_a_linear_schedule_is_refused_as_it_would_bend_it(toy):
    toy.train(schedule={"name": "linear"})
    with pytest.raises(ConfigError, match=r"'schedule\.decay_steps' was 12 and is now 20") as error:
        toy.train(resume=True, max_steps=20, schedule={"name": "linear"})
    assert "set schedule.decay_steps=12 besides training.max_steps" in str(error.value)
    assert "stays at schedule.min_lr from there on" in str(error.value)
    result, _, run = toy.train(
        resume=True, max_steps=20, schedule={"name": "linear", "decay_steps": 12, "min_lr": 0.0}
    )
    assert result.step == 20
    assert [r["lr"] for r in toy.records(run)][11:] == pytest.approx([1e-2 / 9] + [0.0] * 8)


def test_resuming_before_the_first_checkpoint_starts_from_the_beginning(toy):
    with pytest.raises(RuntimeError, match="broken"):
        toy.train(after_update=_break_at(3))
    result, model, run = toy.train(resume=True)
    _, whole, _ = toy.train("whole")
    assert result.step == 12
    assert same_weights(model, whole)
    assert [r["step"] for r in toy.records(run)] == list(range(1, 13))


def _break_at(step):
    def after_update(model, now):
        if now == step:
            raise RuntimeError("broken")

    return after_update


def test_a_foreign_checkpoint_is_refused(toy):
    toy.train()
    with pytest.raises(CheckpointError, match=r"step_00000012: unexpected tensor '1\.bias'"):
        toy.train(resume=True, model=torch.nn.Sequential(torch.nn.Linear(4, 8)))


def test_starting_over_a_run_is_refused(toy):
    toy.train()
    with pytest.raises(ConfigError, match="holds another run"):
        toy.train()


def test_an_empty_training_set_is_refused(toy):
    with pytest.raises(DataError, match="no update"):
        toy.train(loader=ListedUpdates([]))


def test_a_metric_that_validation_does_not_give_is_refused(toy):
    with pytest.raises(ConfigError, match="keep_best = 'bleu'"):
        toy.train(keep_best="bleu", validate=lambda model, step: {"loss": 1.0})
