"""Two gloo processes compute what one does: same losses, same weights, with dropout too.

The file is its own driver: pytest starts it under torchrun with two processes, and without with one.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from deepnet.bundle import read_tensors
from deepnet.record import RunFolder, read_jsonl
from deepnet.training.batches import ListedUpdate
from deepnet.training.checkpoint.folder import list_checkpoints
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from deepnet.training.engine.ranks import Ranks, joined_ranks
from deepnet.training.guard.config import GuardConfig
from deepnet.training.loop import train_loop
from deepnet.training.validation import Validation


@dataclass
class ToyBatch:
    x: torch.Tensor
    y: torch.Tensor

    def to(self, device):
        return self


@dataclass
class Dealt:
    """Five updates of three micro-batches of different sizes, dealt to ranks: rank 0 has two of them, rank 1 one."""

    rank: int
    world_size: int
    number: int = 5
    nan_at: int | None = None
    """The update whose second micro-batch, which is rank 1's alone, is not a number."""

    def updates(self, epoch, start=0):
        draw = torch.Generator().manual_seed(1)
        for index in range(self.number):
            batches = [
                ToyBatch(
                    torch.randn(rows, 4, generator=draw, dtype=torch.float64),
                    torch.randint(3, (rows,), generator=draw),
                )
                for rows in (2, 5, 3)
            ]
            if index == self.nan_at:
                batches[1].x.fill_(torch.nan)
            if index >= start:
                yield ListedUpdate(tuple(batches[self.rank :: self.world_size]), 10)

    def updates_per_epoch(self, epoch):
        return self.number


class WeightSum(Validation):
    """The sum of a matrix's squares, to which each rank adds every so-many-th row."""

    def __init__(self, ranks):
        self.rows = slice(ranks.rank, None, ranks.world_size)

    def measure(self, model, step):
        return model[0].weight[self.rows].square().sum().item()

    def combine(self, found):
        return {"loss": sum(found)}


def train(ranks, folder, max_steps, *, resume):
    torch.manual_seed(ranks.rank)  # the ranks must be made equal by the engine
    layers = (nn.Linear(4, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3))
    train_loop(
        nn.Sequential(*layers).double(),
        loader=Dealt(ranks.rank, ranks.world_size),
        loss=lambda module, batch: F.cross_entropy(module(batch.x), batch.y, reduction="sum"),
        run=RunFolder(folder),
        training=TrainingConfig(
            max_steps=max_steps, log_every=1, validate_every=4, clip_norm=0.5, ema_decay=0.9
        ),
        optimizer=OptimizerConfig(lr=1e-2),
        schedule=ScheduleConfig(warmup_steps=3),
        validate=WeightSum(ranks),
        ranks=ranks,
        resume=resume,
    )


def train_guarded(ranks, folder):
    """Train past an update that is not a number on one rank alone, going back to the beginning."""
    torch.manual_seed(0)
    train_loop(
        nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.LayerNorm(8), nn.Linear(8, 3)).double(),
        loader=Dealt(ranks.rank, ranks.world_size, number=30, nan_at=20),
        loss=lambda module, batch: F.cross_entropy(module(batch.x), batch.y, reduction="sum"),
        run=RunFolder(folder),
        training=TrainingConfig(max_steps=25, log_every=1, save_every=5),
        optimizer=OptimizerConfig(lr=1e-2),
        schedule=ScheduleConfig(warmup_steps=3),
        guard=GuardConfig(nan="roll_back"),
        ranks=ranks,
    )


class Time:
    """A clock that every update moves on by as many seconds as it is given."""

    def __init__(self, takes):
        self.now, self.takes = 0.0, takes

    def __call__(self):
        return self.now

    def after_update(self, model, step):
        self.now += self.takes


def train_timed(ranks, folder):
    """Train for 16 seconds of the writer's clock, an update a second; the clocks of the other ranks are faster."""
    torch.manual_seed(0)
    time = Time(takes=1.0 + 2.0 * ranks.rank)
    train_loop(
        nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3)).double(),
        loader=Dealt(ranks.rank, ranks.world_size),
        loss=lambda module, batch: F.cross_entropy(module(batch.x), batch.y, reduction="sum"),
        run=RunFolder(folder),
        training=TrainingConfig(max_minutes=16 / 60, log_every=1),
        optimizer=OptimizerConfig(lr=1e-2),
        schedule=ScheduleConfig(name="linear", warmup_steps=4),
        after_update=time.after_update,
        ranks=ranks,
        clock=time,
    )


def prepare(model):
    """Fill what is trained and what is saved with something else on every rank."""
    rank = float(os.environ.get("RANK", "0"))
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(rank + 1)


def gather_prepared(ranks, folder):
    """Prepare a model on each rank and write down what each has at the first update."""
    model = nn.BatchNorm1d(4).double()
    model.register_buffer("mark", torch.zeros(1, dtype=torch.bool))
    seen = []

    def loss(module, batch):
        seen.append({name: t.double().unique().tolist() for name, t in model.state_dict().items()})
        return (module(batch.x) * 0).sum()

    train_loop(
        model,
        loader=Dealt(ranks.rank, ranks.world_size),
        loss=loss,
        run=RunFolder(folder),
        training=TrainingConfig(max_steps=1),
        optimizer=OptimizerConfig(),
        schedule=ScheduleConfig(),
        prepare=prepare,
        ranks=ranks,
    )
    (folder / f"rank{ranks.rank}.json").write_text(json.dumps(seen[0]))


def make_equal(ranks, folder):
    """Make a model equal with no engine around it, and write down what each rank has."""
    model = nn.BatchNorm1d(4)
    prepare(model)
    ranks.make_equal(model)
    found = {name: tensor.unique().tolist() for name, tensor in model.state_dict().items()}
    (folder / f"equal{ranks.rank}.json").write_text(json.dumps(found))


def main(folder):
    """Train in two sessions of one group of processes; joined once more, begin with a model that is prepared."""
    torch.set_num_threads(1)
    with joined_ranks(torch.device("cpu")) as ranks:
        assert ranks.world_size == 2
        train(ranks, folder, 7, resume=False)
        train(ranks, folder, 12, resume=True)
        train_guarded(ranks, folder.with_name("guarded_two"))
        train_timed(ranks, folder.with_name("timed_two"))
    with joined_ranks(torch.device("cpu")) as ranks:
        gather_prepared(ranks, folder.with_name("prepared"))
        make_equal(ranks, folder.with_name("prepared"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory, run_script):
    """The folders that two processes wrote: "two" and "prepared"."""
    folder = tmp_path_factory.mktemp("ranks")
    for name in ("one", "two", "guarded_one", "guarded_two", "timed_one", "timed_two", "prepared"):
        RunFolder.create(folder / name, recipe={})
    run_script(__file__, folder / "two", ranks=2)
    return folder


def test_two_processes_give_the_losses_and_weights_of_one_even_when_resumed(runs):
    train(Ranks(), runs / "one", 12, resume=False)
    one, two = (read_jsonl(runs / name / "metrics.jsonl") for name in ("one", "two"))
    assert [r["step"] for r in two] == list(range(1, 13))
    for ours, theirs in zip(two, one, strict=True):
        for key in ("loss", "gradient_norm", "validation_loss"):
            if key in theirs:
                assert ours[key] == pytest.approx(theirs[key], rel=1e-9)
    weights = [
        read_tensors(list_checkpoints(runs / name / "checkpoints")[-1] / "ema.safetensors")
        for name in ("one", "two")
    ]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["rank", "equal"])
def test_what_was_prepared_on_the_first_rank_is_on_all(runs, name):
    files = [runs / "prepared" / f"{name}{rank}.json" for rank in (0, 1)]
    both = [json.loads(file.read_text()) for file in files]
    assert both[0] == both[1]
    assert both[1]["weight"] == both[1]["running_var"] == [1.0]


def test_all_ranks_go_back_together_when_one_of_them_meets_trouble(runs):
    train_guarded(Ranks(), runs / "guarded_one")
    incidents, losses, weights = [], [], []
    for name in ("guarded_one", "guarded_two"):
        run = RunFolder(runs / name)
        incidents.append(read_jsonl(run.incidents_path))
        losses.append([record["loss"] for record in read_jsonl(run.metrics_path)])
        weights.append(read_tensors(list_checkpoints(run.checkpoints)[-1] / "model.safetensors"))
    assert incidents[0] == incidents[1]
    assert [(one["step"], one["back_to"]) for one in incidents[0]] == [(21, 0)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-12, atol=1e-14)


def test_all_ranks_anneal_by_the_clock_of_the_writer(runs):
    train_timed(Ranks(), runs / "timed_one")
    one, two = (read_jsonl(runs / name / "metrics.jsonl") for name in ("timed_one", "timed_two"))
    rates = [record["lr"] for record in two]
    assert rates[4:] == pytest.approx([1e-2 * (16 - now) / 12 for now in range(4, 17)])
    assert rates == [record["lr"] for record in one]
    losses = [[record["loss"] for record in records] for records in (one, two)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
