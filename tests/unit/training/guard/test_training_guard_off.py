"""A guard that is off: no update waits for a number, and nothing that is not finite is recorded or saved."""

import math
import os
import signal

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from deepnet.bundle import read_tensors
from deepnet.errors import ConfigError, DivergenceError
from deepnet.record import read_jsonl
from deepnet.training.checkpoint.folder import latest_checkpoint, list_checkpoints
from deepnet.training.guard.config import GuardConfig

OFF = {"spike": "off", "explosion": "off", "plateau": "off", "nan": "off"}
READS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__")


class Reads(TorchFunctionMode):
    """Counts what brings a number that is computed from a model's weights to Python, or to the CPU."""

    def __init__(self, model):
        super().__init__()
        self.number = 0
        self._computed = WeakTensorKeyDictionary(dict.fromkeys(model.parameters(), True))

    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if any(given in self._computed for given in tensors((args, kwargs))):
            self.number += func.__name__ in READS
            self._computed.update(dict.fromkeys(tensors(found), True))
        return found


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def reads(toy, name, steps, guard):
    """Return how many numbers a run reads that records and saves at its end alone; SGD itself reads none."""
    model = toy.model()
    with Reads(model) as seen:
        toy.train(
            name, model=model, max_steps=steps, guard=guard, optimizer={"name": "sgd"},
            log_every=100, save_every=0, clip_norm=1.0,
        )  # fmt: skip
    return seen.number


def test_an_update_reads_no_number_where_the_guard_is_off(toy):
    found = {}
    for name, guard in (("off", GuardConfig(**OFF)), ("on", GuardConfig())):
        short, long = (reads(toy, f"{name}{steps}", steps, guard) for steps in (6, 18))
        found[name] = long - short
    assert found["off"] == 0
    assert found["on"] >= 12


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_it_trains_and_records_what_one_does_that_only_looks(toy, average):
    given = {"log_every": 5, "clip_norm": 0.5, "ema_decay": average}
    _, watched, on = toy.train("on", **given)
    _, unwatched, off = toy.train("off", guard=GuardConfig(**OFF), **given)
    pairs = zip(watched.parameters(), unwatched.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    for key in ("step", "loss", "gradient_norm", "skipped_updates", "lr"):
        assert [r[key] for r in toy.records(off)] == [r[key] for r in toy.records(on)]


def spoiling(toy, *, at, where):
    """Return a loss that goes wrong in the update that makes step `at`, of two micro-batches each."""
    calls = iter(range(1, 1000))

    def loss(model, batch):
        found = toy.loss(model, batch)
        if not model.training or math.ceil(next(calls) / 2) != at:
            return found
        if where == "gradient":  # finite itself, with a root whose slope is infinite
            return found + torch.sqrt(found - found.detach())
        return found * torch.nan

    return loss


@pytest.mark.parametrize("where", ["loss", "gradient"])
@pytest.mark.parametrize(
    "due",
    [
        {"log_every": 4, "save_every": 0},
        {"log_every": 100, "save_every": 4},
        {"log_every": 100, "save_every": 0, "validate_every": 4},
        {"log_every": 100, "save_every": 0, "max_steps": 8},
    ],
    ids=["record", "save", "validation", "end"],
)
def test_what_is_not_finite_ends_the_run_when_it_is_next_looked_at(toy, where, due):
    looked = []
    validate = {"validate": lambda model, step: looked.append(step) or {"loss": 1.0}}
    given = {**due, **(validate if "validate_every" in due else {})}
    with pytest.raises(DivergenceError, match=r"by step 8.*guard\.nan = 'stop'"):
        toy.train(loss=spoiling(toy, at=6, where=where), guard=GuardConfig(**OFF), **given)
    run = toy.folder / "run"
    for checkpoint in list_checkpoints(run / "checkpoints"):
        assert int(checkpoint.name[-2:]) <= 4
        tensors = read_tensors(checkpoint / "model.safetensors").values()
        assert all(tensor.isfinite().all() for tensor in tensors)
    assert all(step <= 4 for step in looked)
    metrics = run / "metrics.jsonl"
    recorded = read_jsonl(metrics) if metrics.exists() else []
    assert all(record["step"] <= 4 for record in recorded)


def test_an_interruption_saves_no_weights_that_are_not_finite(toy):
    spoilt = spoiling(toy, at=6, where="loss")
    steps = iter(range(1, 100))

    def interrupt(model, step):
        if next(steps) == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    off = GuardConfig(**OFF)
    with pytest.raises(DivergenceError):
        toy.train(loss=spoilt, guard=off, log_every=100, save_every=4, after_update=interrupt)
    assert latest_checkpoint(toy.folder / "run" / "checkpoints").name == "step_00000004"


def test_resuming_equals_never_stopping(toy):
    given = {"guard": GuardConfig(**OFF), "log_every": 5, "save_every": 100}
    _, whole, run = toy.train("whole", **given)

    def interrupt(model, step):
        if step == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    toy.train("parts", after_update=interrupt, **given)
    _, resumed, parts = toy.train("parts", resume=True, **given)
    pairs = zip(whole.parameters(), resumed.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    for key in ("step", "loss", "gradient_norm"):
        # the sums are as exact, but are added up in other groups
        ours, theirs = ([r[key] for r in toy.records(one)] for one in (parts, run))
        assert ours == pytest.approx(theirs, rel=1e-14)


@pytest.mark.parametrize("kind", ["spike", "explosion", "plateau"])
def test_a_guard_that_judges_updates_reads_them_and_cannot_overlook_a_nan(kind):
    with pytest.raises((ConfigError, ValueError), match="nan = 'off'"):
        GuardConfig(**{**OFF, kind: "warn"})
