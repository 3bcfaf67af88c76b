"""The run folder: whole files or none, one record per step, no second run in the same place."""

import errno
import json
import os

import pytest
import torch

from deepnet.errors import ConfigError, DataError, DeepNetError
from deepnet.record import (
    RunFolder,
    append_jsonl,
    atomic_folder,
    atomic_write,
    environment,
    keep_steps,
    read_jsonl,
    write_json,
)
from deepnet.version import __version__


def test_a_file_appears_only_when_the_block_ends_well(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def break_off():
        with atomic_write(path) as file:
            file.write(b"half")
            assert path.read_bytes() == b"old"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        break_off()
    assert path.read_bytes() == b"old"
    with atomic_write(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


def test_a_full_disk_is_said_and_the_old_file_stays(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DeepNetError, match="No space left on device"):
        write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_folder_appears_only_when_the_block_ends_well(tmp_path):
    path = tmp_path / "deep" / "folder"

    def break_off():
        with atomic_folder(path) as folder:
            (folder / "x").write_bytes(b"1")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        break_off()
    assert list(path.parent.iterdir()) == []
    with atomic_folder(path) as folder:
        (folder / "x").write_bytes(b"1")
        assert not path.exists()
    assert [p.name for p in path.iterdir()] == ["x"]


def test_nan_is_not_written_as_json(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_records_are_read_back_and_an_unfinished_line_is_not(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for step in range(3):
        append_jsonl(path, {"step": step, "loss": 1 / 3})
    with path.open("ab") as file:
        file.write(b'{"step": 3, "lo')
    assert read_jsonl(path) == [{"step": step, "loss": 1 / 3} for step in range(3)]
    keep_steps(path, 1)
    append_jsonl(path, {"step": 2})
    assert [r["step"] for r in read_jsonl(path)] == [0, 1, 2]
    assert read_jsonl(tmp_path / "absent.jsonl") == []


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\nnonsense\n{"step": 3}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl:2"):
        read_jsonl(path)


def test_a_run_folder_holds_the_recipe_and_what_it_ran_on(tmp_path):
    run = RunFolder.create(tmp_path / "new" / "run", recipe={"training": {"seed": 7}})
    assert RunFolder.open(run.path).read_recipe()["recipe"] == {"training": {"seed": 7}}
    found = json.loads(run.environment_path.read_text())
    assert found["format_version"] == 1
    assert found["deepnet"] == __version__
    assert found["packages"]["torch"] == torch.__version__
    assert found["num_threads"] == torch.get_num_threads()


def test_a_folder_with_another_run_is_refused_and_left_alone(tmp_path):
    run = RunFolder.create(tmp_path, recipe={"a": 1})
    append_jsonl(run.metrics_path, {"step": 1})
    with pytest.raises(ConfigError, match=r"holds another run \(metrics\.jsonl\)"):
        RunFolder.create(tmp_path, recipe={"a": 2})
    assert run.read_recipe()["recipe"] == {"a": 1}


def test_a_run_that_was_refused_before_it_trained_does_not_block_its_folder(tmp_path):
    RunFolder.create(tmp_path, recipe={"a": 1})
    assert RunFolder.create(tmp_path, recipe={"a": 2}).read_recipe()["recipe"] == {"a": 2}


def test_a_folder_with_other_things_is_accepted(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    RunFolder.create(tmp_path, recipe={})
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_what_is_no_run_cannot_be_opened(tmp_path):
    with pytest.raises(ConfigError, match="holds no run"):
        RunFolder.open(tmp_path)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match="is a file"):
        RunFolder.create(file, recipe={})


def test_a_run_of_a_later_format_is_refused(tmp_path):
    run = RunFolder.create(tmp_path, recipe={})
    write_json(run.recipe_path, {"format_version": 99, "recipe": {}})
    with pytest.raises(ConfigError, match="format version 99"):
        RunFolder.open(tmp_path)


def test_the_environment_can_be_written_as_json():
    assert json.loads(json.dumps(environment(), allow_nan=False))["num_cpus"] == os.cpu_count()
