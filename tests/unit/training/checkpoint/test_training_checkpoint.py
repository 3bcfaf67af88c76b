"""Checkpoints: whole or absent, refused when damaged, pruned without losing the best."""

import errno
import itertools
import json
import os
import shutil

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from deepnet.bundle import read_tensors
from deepnet.errors import CheckpointError, DeepNetError
from deepnet.seal import SUMS_FILE
from deepnet.training.checkpoint.folder import list_checkpoints, prune_checkpoints
from deepnet.training.checkpoint.selection import read_weights, select_checkpoints, selected_weights
from deepnet.training.optimization.averaging import average_tensors


class Full:
    """Stands in for a function of the disk and fails like a full one at the n-th call."""

    def __init__(self, function, failing_call):
        self.function, self.calls_left = function, failing_call

    def __call__(self, *args, **kwargs):
        self.calls_left -= 1
        if self.calls_left == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.function(*args, **kwargs)


def hidden(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def failure(toy, monkeypatch, function, failing_call):
    """Resume with a disk that is full from one call on; return what was raised, if anything."""
    with monkeypatch.context() as patch:
        patch.setattr(os, function, Full(getattr(os, function), failing_call))
        try:
            toy.train("run", max_steps=8, resume=True, log_every=100)
        except DeepNetError as error:
            return error
    return None


@pytest.mark.parametrize("function", ["fsync", "rename"])
def test_a_full_disk_at_any_write_loses_nothing(toy, monkeypatch, function):
    """The first checkpoint is written; the second fails at its 1st, 2nd, ... use of the disk, until it succeeds."""
    _, _, run = toy.train("run", max_steps=4)
    names = ["step_00000004"]
    for failing_call in itertools.count(1):
        error = failure(toy, monkeypatch, function, failing_call)
        if error is None:
            break
        assert "No space left on device" in str(error)
        assert hidden(run.checkpoints) == hidden(run.path) == []
        names = [p.name for p in list_checkpoints(run.checkpoints)]
        if names != ["step_00000004"]:  # all was written, only flushing the folder's entry failed
            break
    assert names == ["step_00000004", "step_00000008"][: len(names)]
    assert failing_call >= (6 if function == "fsync" else 2)
    result, _, _ = toy.train("run", max_steps=9, resume=True)
    assert result.step == 9


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "foreign"])
def test_a_damaged_checkpoint_is_refused_with_its_path(toy, file, damage):
    _, _, run = toy.train()
    path = list_checkpoints(run.checkpoints)[-1] / file
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2] if damage == "truncated" else b"\x80\x04.")
    with pytest.raises(CheckpointError, match="step_00000012"):
        toy.train(resume=True, max_steps=20)
    shutil.rmtree(path.parent)
    result, _, _ = toy.train(resume=True, max_steps=20)
    assert result.step == 20


@pytest.mark.parametrize(
    "file", ["model.safetensors", "optimizer.safetensors", "guard.safetensors"]
)
def test_a_flipped_bit_is_found_by_the_checksum(toy, file):
    _, _, run = toy.train()
    path = list_checkpoints(run.checkpoints)[-1] / file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        CheckpointError, match=rf"{file} is damaged: its sha256.*remove that folder"
    ):
        toy.train(resume=True, max_steps=20)


def test_a_checkpoint_of_an_earlier_version_has_no_checksums_and_goes_on(toy):
    toy.train(max_steps=8)
    (list_checkpoints(toy.folder / "run" / "checkpoints")[-1] / SUMS_FILE).unlink()
    _, again, _ = toy.train(resume=True)
    _, straight, _ = toy.train("straight")
    assert all(map(torch.equal, again.parameters(), straight.parameters()))


@pytest.mark.parametrize("renamed", ["one", "all of one key"])
def test_optimiser_state_under_a_damaged_name_is_refused_before_an_update(toy, renamed):
    """Without checksums, as earlier versions saved, nothing but the names can tell."""
    _, _, run = toy.train(max_steps=8)
    path = list_checkpoints(run.checkpoints)[-1] / "optimizer.safetensors"
    tensors = read_tensors(path)
    damaged = [name for name in tensors if name.startswith("exp_avg.")]
    for name in damaged if renamed != "one" else damaged[-1:]:
        tensors[name.replace("exp_avg.", "exp_avh.")] = tensors.pop(name)
    save_file(tensors, path)
    path.with_name(SUMS_FILE).unlink()
    with pytest.raises(CheckpointError, match=r"optimiser's state of '.*' lacks exp_avg") as raised:
        toy.train(resume=True, max_steps=20)
    assert "step_00000008" in str(raised.value)


def test_another_format_version_is_refused(toy):
    _, _, run = toy.train()
    path = list_checkpoints(run.checkpoints)[-1] / "state.json"
    header = json.loads(path.read_text())
    assert header["format_version"] == 1
    path.write_text(json.dumps({**header, "format_version": 2}))
    path.with_name(SUMS_FILE).unlink()
    with pytest.raises(CheckpointError, match="format version 2; this deepnet reads 1"):
        toy.train(resume=True, max_steps=20)


def test_what_a_killed_process_left_half_written_is_ignored_and_removed(toy):
    _, _, run = toy.train(max_steps=4)
    (run.checkpoints / ".step_00000008.abc.tmp").mkdir()
    (run.checkpoints / ".step_00000008.abc.tmp" / "model.safetensors").write_bytes(b"half")
    result, _, _ = toy.train(resume=True)
    assert result.step == 12
    assert hidden(run.checkpoints) == []


def test_keeps_the_latest_and_the_best(tmp_path):
    for step in range(1, 7):
        (tmp_path / f"step_{step:08d}").mkdir()
    prune_checkpoints(tmp_path, keep_last=2, steps={3})
    assert [int(p.name[5:]) for p in list_checkpoints(tmp_path)] == [3, 5, 6]


def test_shared_weights_are_stored_once(toy):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.leave = nn.Linear(4, 3), nn.Linear(4, 3)
            self.leave.weight = self.enter.weight

        def forward(self, x):
            return self.enter(x) + self.leave(x)

    _, model, run = toy.train(model=Tied())
    weights = read_tensors(list_checkpoints(run.checkpoints)[-1] / "model.safetensors")
    assert weights.keys() == {"enter.weight", "enter.bias", "leave.bias"}
    _, again, _ = toy.train(model=Tied(), resume=True)
    assert torch.equal(again.leave.weight, model.leave.weight)
    assert again.leave.weight is again.enter.weight


def test_the_best_checkpoint_is_selected_and_the_latest_are_averaged(toy):
    figures = {4: 2.0, 8: 1.0, 12: 3.0}
    _, _, run = toy.train(validate=lambda m, step: {"loss": figures[step]}, validate_every=4)
    paths = list_checkpoints(run.checkpoints)
    assert select_checkpoints(run.checkpoints, average_last=0) == [paths[1]]
    assert select_checkpoints(run.checkpoints, average_last=2) == paths[1:]
    for name, tensor in selected_weights(paths[1:]).items():
        expected = (read_weights(paths[1])[name] + read_weights(paths[2])[name]) / 2
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, expected)


def test_the_latest_checkpoint_is_selected_where_nothing_was_validated(toy):
    _, _, run = toy.train(save_every=4)
    paths = list_checkpoints(run.checkpoints)
    assert len(paths) > 1
    assert select_checkpoints(run.checkpoints, average_last=0) == [paths[-1]]


def test_a_moving_average_is_what_a_checkpoint_hands_on(toy):
    _, model, run = toy.train(ema_decay=0.9)
    [path] = select_checkpoints(run.checkpoints, average_last=0)
    weights = read_weights(path)
    assert weights.keys() == model.state_dict().keys()
    assert torch.equal(weights["0.weight"], read_tensors(path / "ema.safetensors")["0.weight"])
    assert not torch.equal(weights["0.weight"], model[0].weight)


def test_nothing_to_select_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint"):
        select_checkpoints(tmp_path, average_last=0)


def test_averages_of_different_tensors_are_refused():
    with pytest.raises(CheckpointError, match="different tensors"):
        average_tensors([{"a": torch.zeros(2)}, {"a": torch.zeros(3)}])
