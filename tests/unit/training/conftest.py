"""A small classifier with dropout, batches for it, and a way to train it in one call."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from deepnet.record import RunFolder, read_jsonl
from deepnet.training.batches import ListedUpdate, ListedUpdates
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from deepnet.training.loop import train_loop
from deepnet.training.optimization.optimizers import PlainPolicy


@dataclass
class ToyBatch:
    x: torch.Tensor
    y: torch.Tensor

    def to(self, device):
        return ToyBatch(self.x.to(device), self.y.to(device))


class Toy:
    """Everything a call of the loop needs, with one place to override any of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def model(self, *, dropout=0.1, dtype=torch.float32):
        torch.manual_seed(0)
        layers = (nn.Linear(4, 8), nn.LayerNorm(8), nn.Dropout(dropout), nn.Linear(8, 3))
        return nn.Sequential(*layers).to(dtype)

    def batches(self, number, *, rows=4, dtype=torch.float32, seed=1):
        draw = torch.Generator().manual_seed(seed)
        return [
            ToyBatch(
                torch.randn(rows, 4, generator=draw, dtype=dtype),
                torch.randint(3, (rows,), generator=draw),
            )
            for _ in range(number)
        ]

    def updates(self, number=7, *, micro_batches=2):
        batches = self.batches(number * micro_batches)
        groups = [batches[i : i + micro_batches] for i in range(0, len(batches), micro_batches)]
        return ListedUpdates([ListedUpdate(tuple(g), 4 * micro_batches) for g in groups])

    def loss(self, model, batch):
        return F.cross_entropy(model(batch.x), batch.y, reduction="sum")

    def policies(self, model):
        """Say that every matrix is one of a branch."""
        return [
            (name, p, PlainPolicy(depth=int(p.dim() == 2))) for name, p in model.named_parameters()
        ]

    def train(
        self, name="run", *, model=None, resume=False, optimizer=None, schedule=None, **other
    ):
        """Train for 12 updates unless told otherwise; keys of TrainingConfig and of train_loop may be mixed."""
        fields = TrainingConfig.model_fields.keys() - {"precision"}
        training = {"max_steps": 12, "log_every": 1, "save_every": 4}
        training |= {key: other.pop(key) for key in list(other) if key in fields}
        path = self.folder / name
        run = RunFolder.open(path) if resume else RunFolder.create(path, recipe={})
        model = self.model() if model is None else model
        arguments = {"loader": self.updates(), "loss": self.loss, **other}
        if (optimizer or {}).get("name") == "muon":
            arguments["policies"] = self.policies(model)
        result = train_loop(
            model,
            run=run,
            training=TrainingConfig(**training),
            optimizer=OptimizerConfig(**{"lr": 1e-2, **(optimizer or {})}),
            schedule=ScheduleConfig(**{"warmup_steps": 3, **(schedule or {})}),
            resume=resume,
            **arguments,
        )
        return result, model, run

    def records(self, run):
        return read_jsonl(run.metrics_path)


@pytest.fixture
def toy(tmp_path):
    return Toy(tmp_path)
