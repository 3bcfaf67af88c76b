"""Saving takes no memory that training did not, and a disk that refuses takes nothing away.

The file is its own driver: pytest starts it as a program, whose peak of memory is nobody else's.
"""

import json
import resource
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from deepnet.bundle import read_tensors, write_tensors
from deepnet.errors import CheckpointError
from deepnet.record import RunFolder
from deepnet.training.checkpoint.folder import list_checkpoints, save_checkpoint
from deepnet.training.checkpoint.optimizer_state import optimizer_state
from deepnet.training.checkpoint.selection import selected_weights
from deepnet.training.config import OptimizerConfig
from deepnet.training.engine.base import Engine
from deepnet.training.engine.precision import Precision
from deepnet.training.engine.ranks import Ranks
from deepnet.training.guard.judge import Guard, GuardConfig
from deepnet.training.optimization.averaging import MovingAverage
from deepnet.training.state import TrainingState
from deepnet.training.trained import Trained

MIB = 1 << 20
LAYERS, WIDTH = 16, 1024  # 64 MiB of weights, a sixteenth of them in each tensor


def peak_of(work):
    """Return by how many bytes a piece of work raises the most memory that this process has had at once."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    before = _status("VmHWM")
    work()
    return _status("VmHWM") - before


def private_peak_of(work):
    """Return the same of memory that is no file's: the pages of a file can go at once when others need them."""
    done, seen = threading.Event(), []

    def look():
        while not done.is_set():
            seen.append(_status("RssAnon"))
            time.sleep(0.001)

    before, looking = _status("RssAnon"), threading.Thread(target=look)
    looking.start()
    work()
    done.set()
    looking.join()
    return max(seen) - before


def _status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def trained_by_adam():
    """Return a model with everything that a checkpoint holds: 256 MiB."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    precision = Precision("fp32", "cpu")
    engine = Engine(model, optimizer=OptimizerConfig(), precision=precision, ranks=Ranks())
    model(torch.ones(1, WIDTH)).sum().backward()
    engine.optimizer.step()
    engine.drop_gradients()
    return Trained(
        engine=engine,
        average=MovingAverage(engine.held, decay=0.9),
        guard=Guard(GuardConfig(), parameters=[], norm_inputs=[]),
        state=TrainingState(step=1),
    )


def main(folder):
    """Save three checkpoints and average them; print the peaks in bytes."""
    trained = trained_by_adam()
    peaks = {"saving": peak_of(lambda: save_checkpoint(folder, trained=trained, settings={}))}
    for trained.state.step in (2, 3):
        save_checkpoint(folder, trained=trained, settings={})
    peaks["averaging"] = private_peak_of(lambda: selected_weights(list_checkpoints(folder)))
    print(json.dumps(peaks))


@pytest.fixture(scope="module")
def peaks(tmp_path_factory, run_script):
    return json.loads(run_script(__file__, tmp_path_factory.mktemp("peaks")))


def test_a_checkpoint_is_saved_without_a_copy_of_what_it_holds(peaks):
    assert peaks["saving"] < 8 * MIB  # two tensors


def test_what_is_written_of_the_optimiser_is_its_own_memory():
    trained = trained_by_adam()
    optimizer = trained.engine.optimizer
    tensors, _ = optimizer_state(optimizer, parameters=trained.engine.held)
    held = {t.data_ptr() for state in optimizer.state.values() for t in state.values()}
    assert {tensor.data_ptr() for tensor in tensors.values()} == held


def test_an_average_of_three_checkpoints_takes_less_memory_than_training_did(peaks):
    assert peaks["averaging"] < 3 * LAYERS * WIDTH * WIDTH * 4  # the checkpoints hold six models


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32,
     torch.uint8, torch.bool],
)  # fmt: skip
def test_what_is_written_reads_as_it_was_in_every_type_and_shape(tmp_path, dtype):
    draw = torch.arange(24).reshape(4, 6)
    shapes = {
        "matrix": draw, "turned": draw.T, "part": draw[1:3, ::2], "number": draw[1, 1],
        "nothing": draw[:0], "first": draw[0], "ein Umlaut: \u00fc": draw[1],
    }  # fmt: skip
    tensors = {name: tensor.to(dtype) for name, tensor in shapes.items()}
    write_tensors(tmp_path / "f", {**tensors, "other": torch.ones(3, dtype=torch.uint8)})
    for found in (load_file(tmp_path / "f"), read_tensors(tmp_path / "f")):
        assert found.keys() == {*tensors, "other"}
        for name, tensor in tensors.items():
            assert found[name].dtype == dtype
            assert torch.equal(found[name], tensor)
    other = load_file(tmp_path / "f")["other"]
    assert other.tolist() == [1, 1, 1]


def test_tensors_that_share_memory_are_written_each(tmp_path):
    whole = torch.arange(6.0)
    write_tensors(tmp_path / "f", {"one": whole[:3], "two": whole[2:], "whole": whole})
    assert load_file(tmp_path / "f")["two"].tolist() == [2, 3, 4, 5]


def test_a_disk_that_is_full_in_the_middle_of_a_tensor_is_one_line_and_loses_nothing(toy):
    """A limit on the size of files stands in for the disk: the same error, at a byte of our choice."""
    wide = lambda: nn.Sequential(nn.Linear(4, 4096), nn.Linear(4096, 3))  # noqa: E731
    _, _, run = toy.train(model=wide(), max_steps=4)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, limits[1]))
    try:
        with pytest.raises(CheckpointError) as error:
            toy.train(model=wide(), max_steps=8, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(str(error.value).splitlines()) == 1
    for part in ("step 8", "File too large", "the earlier ones are complete"):
        assert part in str(error.value)
    assert [path.name for path in run.checkpoints.iterdir()] == ["step_00000004"]
    assert toy.train(model=wide(), max_steps=8, resume=True)[0].step == 8


def test_memory_that_runs_out_while_saving_is_one_line_and_loses_nothing(toy, monkeypatch):
    _, _, run = toy.train(max_steps=4)
    with monkeypatch.context() as patch:
        patch.setattr("deepnet.training.checkpoint.folder.write_tensors", _greedy)
        with pytest.raises(Exception, match="out of memory while step 8 was saved: ") as error:
            toy.train(max_steps=8, resume=True)
    assert len(str(error.value).splitlines()) == 1
    assert [path.name for path in RunFolder(run.path).checkpoints.iterdir()] == ["step_00000004"]


def _greedy(path, tensors, **how):
    torch.empty(2**50)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
