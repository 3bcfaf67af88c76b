"""When one of two gloo processes fails or hangs, both end soon and say why; what the writer does alone takes its time.

The file is its own driver: pytest starts it twice, as two ranks without a launcher that would end one for the other.
"""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from deepnet.errors import DeepNetError
from deepnet.record import RunFolder, read_jsonl
from deepnet.training import due
from deepnet.training.batches import ListedUpdate, ListedUpdates
from deepnet.training.checkpoint.folder import save_checkpoint
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from deepnet.training.engine import ranks as joining
from deepnet.training.loop import train_loop

BROKEN = "the corpus of rank 1 is broken"


class Pair:
    """Inputs and targets of four examples."""

    def __init__(self):
        draw = torch.Generator().manual_seed(1)
        self.x = torch.randn(4, 4, generator=draw)
        self.y = torch.randint(3, (4,), generator=draw)

    def to(self, device):
        return self


def train(ranks, folder, what, engine):
    """Train for 12 updates, of which something happens to one."""
    calls = []

    def loss(model, batch):
        calls.append(1)
        if len(calls) == 5 and ranks.rank == 1:
            note(folder, "failed")
            if what == "error":
                raise ValueError(BROKEN)
            if what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "hang":
                time.sleep(9)
        return F.cross_entropy(model(batch.x), batch.y, reduction="sum")

    def validate(model, step):
        if what == "validation":
            time.sleep(9)
        if what == "broken validation":
            note(folder, "failed")
            raise ValueError(BROKEN)
        return {"loss": 1.0}

    if what == "saving" and ranks.is_writer:
        due.save_checkpoint = save_slowly
    train_loop(
        nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)),
        loader=ListedUpdates([ListedUpdate((Pair(),), 4 * ranks.world_size)] * 6),
        loss=loss,
        run=RunFolder(folder),
        training=TrainingConfig(
            max_steps=12, log_every=1, validate_every=6, save_every=4, engine=engine
        ),
        optimizer=OptimizerConfig(lr=1e-2),
        schedule=ScheduleConfig(warmup_steps=3),
        validate=validate,
        ranks=ranks,
    )


def save_slowly(*args, **kwargs):
    """Save as always, after nine seconds."""
    time.sleep(9)
    return save_checkpoint(*args, **kwargs)


def note(folder, what):
    """Write down when something happened, in seconds."""
    (folder / what).write_text(str(time.time()))


def main(folder, what, engine):
    """Be one rank; gradients may take six seconds."""
    torch.set_num_threads(1)
    joining.GRADIENT_PATIENCE = timedelta(seconds=6)
    try:
        with joining.joined_ranks(torch.device("cpu")) as ranks:
            train(ranks, folder, what, engine)
    except DeepNetError as error:
        note(folder, "ended")
        sys.exit(f"error: {error}")


@pytest.fixture
def folder(tmp_path):
    RunFolder.create(tmp_path, recipe={})
    return tmp_path


def steps(folder):
    return [row["step"] for row in read_jsonl(folder / "metrics.jsonl")]


@pytest.mark.parametrize(
    ("what", "engine", "other", "reason"),
    [
        ("error", "auto", 0, f"rank 1 failed: ValueError: {BROKEN}"),
        ("kill", "auto", 0, "another rank ended without a word or does not answer"),
        ("kill", "sharded", 0, "another rank ended without a word or does not answer"),
        ("hang", "auto", 0, "another rank ended without a word or does not answer"),
        ("broken validation", "auto", 1, f"rank 0 failed: ValueError: {BROKEN}"),
    ],
)
def test_when_one_rank_fails_the_other_ends_with_its_reason(
    folder, run_pair, what, engine, other, reason
):
    codes, said = run_pair(__file__, folder, what, engine)
    assert 0 not in codes
    last = said[other].strip().splitlines()[-1]
    assert last.startswith(f"error: rank {other} stopped, because {reason}")
    assert "the latest checkpoint is as it was" in last
    failed, ended = (float((folder / name).read_text()) for name in ("failed", "ended"))
    assert ended - failed < 30
    checkpoints = [path.name for path in (folder / "checkpoints").iterdir()]
    assert checkpoints == ["step_00000004"]


@pytest.mark.parametrize("what", ["validation", "saving"])
def test_what_the_writer_does_longer_than_gradients_may_take_is_waited_for(folder, run_pair, what):
    codes, said = run_pair(__file__, folder, what, "auto")
    assert codes == [0, 0], said
    assert steps(folder) == list(range(1, 13))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
