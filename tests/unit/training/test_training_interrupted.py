"""Whatever interrupts a run: the checkpoints that are kept, averaged and called the best are those of a calm one."""

import json
import math
import os
import signal
import time
from pathlib import Path

import pytest
import torch

from deepnet.bundle import read_tensors
from deepnet.errors import ConfigError
from deepnet.seal import SUMS_FILE
from deepnet.training.batches import ListedUpdates
from deepnet.training.checkpoint import folder as checkpoint
from deepnet.training.checkpoint.folder import latest_checkpoint, list_checkpoints
from deepnet.training.checkpoint.selection import select_checkpoints, selected_weights
from deepnet.training.engine.precision import Precision
from deepnet.training.guard.judge import GuardConfig

TIMES = ("seconds", "tokens_per_second", "progress")


def interrupting(*steps):
    """Return an after_update that asks for the end after each of some updates, once."""
    left = set(steps)

    def after_update(model, step):
        if step in left:
            left.remove(step)
            os.kill(os.getpid(), signal.SIGTERM)

    return after_update


def in_sessions(toy, name, **settings):
    """Train until the run is over, as often as it is interrupted; return its result and folder."""
    result, _, run = toy.train(name, **settings)
    while result.stopped == "interrupted":
        result, _, run = toy.train(name, **settings, resume=True)
    return result, run


def records(toy, run):
    return [{k: v for k, v in row.items() if k not in TIMES} for row in toy.records(run)]


def names(paths):
    return [path.name for path in paths]


@pytest.mark.parametrize("steps", [(9,), (5, 6, 9), (4, 8), (3, 7, 11), (11,)])
@pytest.mark.parametrize("average_last", [0, 2, 3])
def test_the_same_checkpoints_are_averaged(toy, steps, average_last):
    settings = {
        "save_every": 4,
        "validate_every": 3,
        "validate": lambda model, step: {"loss": {3: 2.0, 6: 1.0}.get(step, 3.0)},
        "average_last": average_last,
    }
    _, calm = in_sessions(toy, "calm", **settings)
    result, run = in_sessions(toy, "run", after_update=interrupting(*steps), **settings)
    assert (result.stopped, result.step, result.best_step) == ("max_steps", 12, 6)
    chosen = [select_checkpoints(r.checkpoints, average_last=average_last) for r in (calm, run)]
    assert names(chosen[0]) == names(chosen[1])
    assert sorted(names(run.checkpoints.iterdir())) == sorted(names(calm.checkpoints.iterdir()))
    weights = [selected_weights(paths) for paths in chosen]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert records(toy, run) == records(toy, calm)


def test_what_an_interruption_saved_is_gone_when_the_run_has_saved_again(toy):
    _, _, run = toy.train(after_update=interrupting(5))
    assert sorted(names(run.checkpoints.iterdir())) == ["interrupted_00000006", "step_00000004"]
    assert latest_checkpoint(run.checkpoints).name == "interrupted_00000006"
    toy.train(resume=True)
    assert sorted(names(run.checkpoints.iterdir())) == [f"step_{step:08d}" for step in (4, 8, 12)]


def test_the_latest_of_an_interrupted_run_is_where_it_stopped(toy):
    _, _, run = toy.train(after_update=interrupting(5))
    assert names(select_checkpoints(run.checkpoints, average_last=1)) == ["interrupted_00000006"]
    assert names(select_checkpoints(run.checkpoints, average_last=2)) == ["step_00000004"]
    _, _, early = toy.train("early", after_update=interrupting(1))
    assert names(select_checkpoints(early.checkpoints, average_last=0)) == ["interrupted_00000002"]


def test_a_regular_checkpoint_counts_more_than_that_of_an_interruption_of_the_same_step(toy):
    _, _, run = toy.train(max_steps=4)
    (run.checkpoints / "interrupted_00000004").mkdir()
    (run.checkpoints / "interrupted_00000003").mkdir()
    assert latest_checkpoint(run.checkpoints).name == "step_00000004"
    (run.checkpoints / "interrupted_00000010").mkdir()
    assert latest_checkpoint(run.checkpoints).name == "interrupted_00000010"


def spoilt(toy, *at):
    """Return 12 updates, of which some are not a number."""
    updates = toy.updates(12).listed
    for place in at:
        for batch in updates[place].batches:
            batch.x[0, 0] = math.nan
    return ListedUpdates(updates)


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_best_step_is_kept_where_the_last_update_was_skipped(toy, interrupted):
    """The checkpoint of step 11 is there when the validation at the end finds that it is the best."""
    figures = {4: 2.0, 8: 3.0, 11: 1.0}
    data = spoilt(toy, 11)

    def loss(model, batch):
        if interrupted and batch.x.isnan().any() and not asked:
            asked.append(True)
            os.kill(os.getpid(), signal.SIGTERM)
        return toy.loss(model, batch)

    asked = []
    result, run = in_sessions(
        toy,
        "run",
        loader=data,
        loss=loss,
        max_steps=0,
        max_epochs=1,
        save_every=11,
        keep_last=1,
        validate_every=4,
        validate=lambda model, step: {"loss": figures[step]},
        guard=GuardConfig(nan="skip"),
    )
    assert (result.stopped, result.step, result.best_step) == ("max_epochs", 11, 11)
    assert names(select_checkpoints(run.checkpoints, average_last=0)) == ["step_00000011"]
    again, _, _ = toy.train(
        resume=True, max_steps=0, max_epochs=1, loader=data, guard=GuardConfig(nan="skip")
    )
    assert (again.step, again.best, again.best_step) == (11, 1.0, 11)


@pytest.mark.parametrize("killed_at", ["write_tensors", "write_json", "seal_folder"])
def test_a_kill_while_a_checkpoint_is_written_again_leaves_one_to_go_on_from(
    toy, monkeypatch, killed_at
):
    """The files change one after the other: sums of the old ones would accuse the new ones."""
    figures = {4: 2.0, 8: 3.0, 11: 1.0}
    settings = {
        "loader": spoilt(toy, 11),
        "max_steps": 0,
        "max_epochs": 1,
        "save_every": 11,
        "validate_every": 4,
        "guard": GuardConfig(nan="skip"),
        "validate": lambda model, step: {"loss": figures[step]},
    }
    written = getattr(checkpoint, killed_at)

    def killed(path, *given, **named):
        parts = Path(path).parts
        if "step_00000011" in parts and not any(part.endswith(".tmp") for part in parts):
            raise KeyboardInterrupt
        return written(path, *given, **named)

    monkeypatch.setattr(checkpoint, killed_at, killed)
    with pytest.raises(KeyboardInterrupt):
        toy.train(**settings)
    monkeypatch.undo()
    result, _, _ = toy.train(**settings, resume=True)
    assert (result.step, result.best_step) == (11, 11)


def test_the_best_step_is_kept_where_the_scaler_skipped_the_last_update(toy):
    def loss(model, batch):
        return toy.loss(model, batch) * (1e4 if late else 1.0)

    late = []
    result, run = in_sessions(
        toy,
        "run",
        loss=loss,
        precision=Precision("fp16", "cpu"),
        after_update=lambda model, step: late.append(step) if step == 11 else None,
        save_every=11,
        validate_every=4,
        validate=lambda model, step: {"loss": 1.0 / step},
    )
    assert toy.records(run)[-1]["skipped_updates"] == 1
    assert result.best_step == 12
    assert names(select_checkpoints(run.checkpoints, average_last=0)) == ["step_00000012"]


@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
@pytest.mark.parametrize("at", [4, 12])
def test_a_signal_in_a_validation_saves_at_once_and_the_resumed_run_validates_again(
    toy, at, ema_decay
):
    seen = []

    def validate(model, step):
        seen.append(step)
        if seen.count(at) == 1 and step == at and interrupts:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)  # what a long validation has still to do
        return {"loss": float(sum(p.abs().sum() for p in model.parameters()))}

    settings = {
        "validate": validate, "validate_every": 4, "save_every": 5, "log_every": 4,
        "ema_decay": ema_decay,
    }  # fmt: skip
    interrupts = False
    calm_result, calm = in_sessions(toy, "calm", **settings)
    interrupts, before = True, time.monotonic()
    seen.clear()
    result, _, run = toy.train(**settings)
    assert (result.stopped, result.step) == ("interrupted", at)
    assert time.monotonic() - before < 30
    assert [row["step"] for row in toy.records(run)] == list(range(4, at, 4))
    assert latest_checkpoint(run.checkpoints).name == f"interrupted_{at:08d}"
    result, _, run = toy.train(**settings, resume=True)
    assert seen.count(at) == 2
    assert (result.stopped, result.best, result.best_step) == (
        "max_steps", calm_result.best, calm_result.best_step
    )  # fmt: skip
    assert records(toy, run) == records(toy, calm)
    last = [list_checkpoints(r.checkpoints)[-1] for r in (calm, run)]
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert (last[0] / file).read_bytes() == (last[1] / file).read_bytes()


def test_a_record_that_was_written_before_a_kill_is_not_written_twice(toy):
    """The resumed run wrote what was due at step 4, and was killed before it saved."""
    settings = {"log_every": 4}
    _, _, run = toy.train(after_update=interrupting(3), **settings)
    assert latest_checkpoint(run.checkpoints).name == "interrupted_00000004"
    run.metrics_path.write_text('{"step": 4, "loss": 1.0}\n')
    toy.train(**settings, resume=True)
    assert [row["step"] for row in toy.records(run)] == [4, 8, 12]


def test_a_run_whose_average_did_not_warm_up_goes_on_without(toy):
    """Earlier versions had a constant decay; what they saved does not name the warm-up."""
    _, _, run = toy.train(max_steps=4, ema_decay=0.9)
    path = list_checkpoints(run.checkpoints)[-1]
    header = json.loads((path / "state.json").read_text())
    del header["settings"]["moving_average"]
    (path / "state.json").write_text(json.dumps(header))
    (path / SUMS_FILE).unlink()
    average = read_tensors(path / "ema.safetensors")["0.weight"].clone()
    seen = []
    _, _, run = toy.train(
        ema_decay=0.9,
        resume=True,
        max_steps=6,
        model=toy.model(),
        after_update=lambda model, step: seen.append(model[0].weight.detach().clone()),
    )
    for weight in seen:
        average = 0.9 * average + 0.1 * weight
    found = read_tensors(list_checkpoints(run.checkpoints)[-1] / "ema.safetensors")["0.weight"]
    torch.testing.assert_close(found, average)
    last = json.loads((list_checkpoints(run.checkpoints)[-1] / "state.json").read_text())
    assert "moving_average" not in last["settings"]


def test_the_precision_that_was_found_is_saved_and_kept(toy):
    _, _, run = toy.train(max_steps=4, precision=Precision("bf16", "cpu"))
    header = json.loads((list_checkpoints(run.checkpoints)[-1] / "state.json").read_text())
    assert header["settings"]["training"]["precision"] == "bf16"
    _, _, run = toy.train(resume=True)  # "auto" on this device is fp32 for a narrow model
    header = json.loads((list_checkpoints(run.checkpoints)[-1] / "state.json").read_text())
    assert header["settings"]["training"]["precision"] == "bf16"
    with pytest.raises(ConfigError, match=r"'training\.precision' was 'bf16' and is now 'fp32'"):
        toy.train(resume=True, max_steps=20, precision=Precision("fp32", "cpu"))


def test_a_run_that_saved_auto_goes_on(toy):
    _, _, run = toy.train(max_steps=4)
    path = list_checkpoints(run.checkpoints)[-1]
    header = json.loads((path / "state.json").read_text())
    header["settings"]["training"]["precision"] = "auto"
    (path / "state.json").write_text(json.dumps(header))
    (path / SUMS_FILE).unlink()
    assert toy.train(resume=True)[0].step == 12
