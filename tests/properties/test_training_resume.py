"""A run that is killed with SIGKILL again and again ends as one that never was: same losses, same weights, bit for bit.

The file is its own driver: pytest starts it once as a program, which forks a process per session.
"""

import importlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from deepnet.data.loader import Batch
from deepnet.record import RunFolder, read_jsonl
from deepnet.schemes.catalogue import load_scheme
from deepnet.training.batches import ListedUpdate, ListedUpdates
from deepnet.training.checkpoint.folder import list_checkpoints
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from deepnet.training.engine.precision import Precision
from deepnet.training.loop import train_loop
from deepnet.training.loss import token_loss, validation_loss
from deepnet.transformer.initialize import parameter_policies
from deepnet.transformer.models import Transformer, TransformerConfig

STEPS = 24
VOCABULARY = 12
TIMES = ("seconds", "tokens_per_second", "progress")


def batches(number):
    draw = torch.Generator().manual_seed(1)
    for _ in range(number):
        ids = torch.randint(2, VOCABULARY - 1, (3, 5), generator=draw)
        start = torch.full((3, 1), VOCABULARY - 1)
        yield Batch(ids, None, torch.cat([start, ids[:, :-1]], 1), ids, 15, 15)


def train(folder, limit, *, resume):
    """Train a tiny BranchNorm translator with dropout whose growth ends in the middle of the run.

    Its rate falls towards the end of its epochs where these are its limit.
    """
    torch.manual_seed(5)
    config = TransformerConfig(
        encoder_layers=2,
        decoder_layers=2,
        d_model=8,
        ffn_dim=16,
        num_heads=2,
        vocab_size=VOCABULARY,
    )
    model = Transformer(
        config, load_scheme("branchnorm", {"T": STEPS // 2}), optimizer_family="adam"
    )
    listed = list(batches(14))
    updates = [ListedUpdate(tuple(listed[i : i + 2]), 30) for i in range(0, 14, 2)]
    device, precision = torch.device("cpu"), Precision("fp32", "cpu")

    def validate(model, step):
        return {"loss": validation_loss(model, listed[:2], device=device, precision=precision)}

    train_loop(
        model,
        loader=ListedUpdates(updates),
        loss=token_loss(label_smoothing=0.1),
        run=RunFolder.open(folder) if resume else RunFolder.create(folder, recipe={}),
        training=TrainingConfig(
            **limit,
            validate_every=7,
            save_every=2,
            log_every=1,
            ema_decay=0.9,
            clip_norm=1.0,
        ),
        optimizer=OptimizerConfig(lr=1e-2),
        schedule=ScheduleConfig(
            name="cosine" if "max_epochs" in limit else "inverse_sqrt", warmup_steps=6
        ),
        validate=validate,
        after_update=lambda model, step: model.advance(step),
        policies=parameter_policies(model),
        resume=resume,
    )


def session(folder, limit, *, resume, kill_at_rename=0, kill_after=0.0):
    """Fork a process that trains; kill it at its n-th rename or after so many seconds; return True when it finished."""
    child = os.fork()
    if child == 0:
        if kill_at_rename:
            _kill_at_rename(folder, kill_at_rename)
        train(folder, limit, resume=resume)
        os._exit(0)
    if kill_after:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return not os.WIFSIGNALED(status)


def _kill_at_rename(folder, number):
    left = [number]

    def hook(event, args):
        if event == "os.rename" and str(args[0]).startswith(str(folder)):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def outcome(folder):
    """Return everything that has to be equal: records without times, and the bytes of the last checkpoint."""
    records = [
        {k: v for k, v in record.items() if k not in TIMES}
        for record in read_jsonl(folder / "metrics.jsonl")
    ]
    last = list_checkpoints(folder / "checkpoints")[-1]
    tensors = {p.name: p.read_bytes().hex() for p in sorted(last.glob("*.safetensors"))}
    return {"records": records, "checkpoint": last.name, "tensors": tensors}


def main(folder, limit):
    """Run once without a kill, then with kills before each of several renames, then with kills at random moments."""
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")  # torch.optim would import it in every fork
    start = time.monotonic()
    assert session(folder / "whole", limit, resume=False)
    seconds = time.monotonic() - start
    expected = outcome(folder / "whole")
    report = {"steps": len(expected["records"]), "kills": 0, "different": []}
    chance = random.Random(7)
    plans = {f"rename {n}": [{"kill_at_rename": n}] for n in (2, 9, 14)}
    plans["random"] = [{"kill_after": chance.uniform(0.02, 0.25) * seconds} for _ in range(7)]
    for name, kills in plans.items():
        run = folder / name.replace(" ", "_")
        resume = False
        for kill in kills:
            report["kills"] += not session(run, limit, resume=resume, **kill)
            resume = (run / "recipe.json").exists()
        session(run, limit, resume=resume)
        if outcome(run) != expected:
            report["different"].append(name)
    print(json.dumps(report))


@pytest.mark.parametrize(
    ("limit", "steps"), [({"max_steps": STEPS}, STEPS), ({"max_epochs": 3}, 21)]
)
def test_killed_runs_end_as_uninterrupted_ones(tmp_path, run_script, limit, steps):
    report = json.loads(run_script(__file__, tmp_path, json.dumps(limit)).splitlines()[-1])
    assert report["steps"] == steps
    assert report["kills"] >= 6
    assert report["different"] == []


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
