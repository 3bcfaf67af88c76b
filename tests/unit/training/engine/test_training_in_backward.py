"""Steps in the backward pass: the ordinary update bit for bit, gradients that never coexist, and what is refused."""

import math
from dataclasses import dataclass

import pytest
import torch

from deepnet.bundle import read_tensors
from deepnet.errors import ConfigError, DivergenceError
from deepnet.record import RunFolder, read_jsonl
from deepnet.schemes.catalogue import load_scheme
from deepnet.seal import read_json
from deepnet.training.batches import ListedUpdate, ListedUpdates
from deepnet.training.checkpoint.folder import list_checkpoints
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from deepnet.training.cross_entropy import summed_cross_entropy
from deepnet.training.engine.in_backward import InBackward
from deepnet.training.engine.precision import Precision
from deepnet.training.engine.ranks import Ranks
from deepnet.training.engine.recompute import list_chains
from deepnet.training.guard.config import GuardConfig
from deepnet.training.loop import train_loop
from deepnet.training.probing import Probing
from deepnet.transformer.initialize import parameter_policies
from deepnet.transformer.models import Transformer, TransformerConfig

IDS = 30
OPTIMIZERS = [
    {"name": "adam", "weight_decay": 0.1},
    {"name": "adamw", "weight_decay": 0.1},
    {"name": "radam"},
    {"name": "sgd", "momentum": 0.9, "weight_decay": 0.1},
    {"name": "sgd"},
    {"name": "adafactor"},
]


@dataclass
class Pairs:
    source: torch.Tensor
    target: torch.Tensor

    def to(self, device):
        return self


def pairs(seed):
    draw = torch.Generator().manual_seed(seed)
    return Pairs(*torch.randint(2, IDS - 1, (2, 3, 6), generator=draw))


def loss(model, batch):
    logits = model(batch.source, torch.ones_like(batch.source, dtype=torch.bool), batch.target)
    return summed_cross_entropy(logits, batch.target)


def make(dtype=torch.float64):
    """Return a translator whose one matrix of embeddings is used three times."""
    torch.manual_seed(0)
    config = TransformerConfig(
        encoder_layers=3,
        decoder_layers=3,
        d_model=16,
        ffn_dim=32,
        num_heads=2,
        vocab_size=IDS,
        tie_embeddings="all",
        dropout=0.2,
    )
    return Transformer(config, load_scheme("deepnorm")).to(dtype)


@dataclass(frozen=True)
class Faster:
    """A policy whose matrices learn at twice the rate, and decay by half."""

    lr: float = 2.0
    weight_decay: float = 0.5
    eps: float = 3.0


def train(folder, name, *, steps=20, resume=False, optimizer=None, **training):
    """Train by a warm-up and its fall, with multipliers by role, and return the weights and what was recorded."""
    model = make()
    run = RunFolder.open(folder / name) if resume else RunFolder.create(folder / name, recipe={})
    batches = [pairs(seed) for seed in range(7)]
    settings = {"max_steps": steps, "log_every": 1, "save_every": 10, **training}
    train_loop(
        model,
        loader=ListedUpdates([ListedUpdate((one,), one.target.numel()) for one in batches]),
        loss=loss,
        run=run,
        training=TrainingConfig(**settings),
        optimizer=OptimizerConfig(**{"lr": 1e-2, **(optimizer or {})}),
        schedule=ScheduleConfig(warmup_steps=6),
        policies=[
            (name, one, Faster() if one.dim() > 1 else policy)
            for name, one, policy in parameter_policies(model)
        ],
        blocks=[layer for chain in list_chains(model) for layer in chain],
        resume=resume,
    )
    rows = [(row["loss"], row["lr"]) for row in read_jsonl(run.metrics_path)]
    return [parameter.detach() for parameter in model.parameters()], rows


def check_same(found, expected):
    assert all(torch.equal(a, b) for a, b in zip(found[0], expected[0], strict=True))
    assert found[1] == expected[1]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_twenty_updates_are_the_ordinary_ones(tmp_path, optimizer):
    expected = train(tmp_path, "ordinary", optimizer=optimizer)
    found = train(tmp_path, "found", optimizer=optimizer, step_in_backward=True)
    check_same(found, expected)
    first, second = (
        read_tensors(
            list_checkpoints(tmp_path / name / "checkpoints")[-1] / "optimizer.safetensors"
        )
        for name in ("ordinary", "found")
    )
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("segment", [1, 2, 0])
def test_recompute_and_an_average_go_with_it(tmp_path, segment):
    again = {"recompute": True, "recompute_segment": segment, "ema_decay": 0.9}
    expected = train(tmp_path, "ordinary", ema_decay=0.9)
    check_same(train(tmp_path, "found", step_in_backward=True, **again), expected)


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS[:4], ids=str)
def test_one_goes_on_where_the_other_has_stopped(tmp_path, optimizer, begins):
    whole, _ = train(tmp_path, "whole", optimizer=optimizer)
    train(tmp_path, "run", optimizer=optimizer, steps=10, step_in_backward=begins)
    found, _ = train(tmp_path, "run", optimizer=optimizer, resume=True, step_in_backward=not begins)
    assert all(torch.equal(a, b) for a, b in zip(found, whole, strict=True))


def engine_of(model):
    return InBackward(
        model,
        optimizer=OptimizerConfig(lr=1e-2),
        policies=parameter_policies(model),
        precision=Precision("fp32", "cpu"),
        ranks=Ranks(),
    )


def test_gradients_never_coexist_and_a_tied_matrix_steps_once(monkeypatch):
    model = make()
    engine, seen = engine_of(model), []
    step = engine.optimizer.step

    def watched():
        there = [name for name, p in model.named_parameters() if p.grad is not None]
        seen.extend(there)
        assert len(there) == 1
        step()

    monkeypatch.setattr(engine.optimizer, "step", watched)
    engine.add_gradients(lambda module: loss(module, pairs(0)), num_tokens=18, sends=True)
    assert sorted(seen) == sorted(name for name, _ in model.named_parameters())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert {state["step"].item() for state in engine.optimizer.state.values()} == {1.0}


def test_the_norms_are_those_of_the_gradients():
    model, twin = make(), make()
    engine = engine_of(model.train())
    torch.manual_seed(3)
    engine.add_gradients(lambda module: loss(module, pairs(0)), num_tokens=18, sends=True)
    torch.manual_seed(3)
    (loss(twin.train(), pairs(0)) / 18).backward()
    expected = torch.stack([p.grad.norm() for p in twin.parameters()])
    torch.testing.assert_close(engine.measure_gradients(), expected)


def test_nothing_stays_on_the_model():
    model = make()
    engine = engine_of(model)
    engine.add_gradients(lambda module: loss(module, pairs(0)), num_tokens=18, sends=True)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    loss(model, pairs(1)).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"clip_norm": 1.0}, r"clip_norm = 1\.0, as the norm of the whole gradient"),
        ({"guard": GuardConfig(nan="skip")}, "guard.spike or guard.nan = 'skip'"),
        ({"guard": GuardConfig(spike="skip")}, "guard.spike or guard.nan = 'skip'"),
        ({"optimizer": {"name": "lamb"}}, "'lamb', which counts its steps"),
        ({"precision": Precision("fp16", "cpu")}, "training.precision = 'fp16'"),
        ({"engine": "sharded"}, "training.engine = 'sharded'"),
        ({"probing": Probing(1, lambda *_, **__: None)}, "probes.every = 0"),
        ({"ranks": Ranks(rank=0, world_size=2)}, "2 processes"),
        ({}, "updates of 2 micro-batches"),
    ],
)
def test_what_needs_all_gradients_first_is_refused_in_one_line(toy, given, message):
    with pytest.raises(ConfigError, match=message) as error:
        toy.train(step_in_backward=True, **given)
    assert str(error.value).startswith("training.step_in_backward = true does not go together")
    assert "\n" not in str(error.value)


def spoilt(toy, number, at):
    """Return updates of one micro-batch, one of which is not a number."""
    updates = toy.updates(number, micro_batches=1)
    updates.listed[at].batches[0].x[0, 0] = math.nan
    return updates


def test_a_guard_that_stops_says_that_the_weights_have_taken_the_update(toy):
    with pytest.raises(DivergenceError, match="stopped after the weights took it"):
        toy.train(loader=spoilt(toy, 12, 5), step_in_backward=True)
    run = RunFolder.open(toy.folder / "run")
    assert [path.name for path in list_checkpoints(run.checkpoints)] == ["step_00000004"]
    (incident,) = read_jsonl(run.incidents_path)
    assert read_json(run.path / incident["details"])["again"] == {}


def test_a_guard_that_goes_back_goes_on_as_it_would(toy):
    runs = []
    for in_backward in (False, True):
        _, model, run = toy.train(
            str(in_backward),
            loader=spoilt(toy, 20, 6),
            guard=GuardConfig(nan="roll_back"),
            step_in_backward=in_backward,
        )
        assert [one["back_to"] for one in read_jsonl(run.incidents_path)] == [0]
        runs.append([parameter.detach() for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
