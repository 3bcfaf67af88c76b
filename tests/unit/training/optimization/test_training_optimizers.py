"""Optimisers: the right update, per-parameter multipliers, state as tensors."""

import sys

import pytest
import torch
from torch import nn

from deepnet.errors import CheckpointError, ConfigError
from deepnet.training.checkpoint.optimizer_state import load_optimizer_state, optimizer_state
from deepnet.training.config import OptimizerConfig, optimizer_family
from deepnet.training.optimization.optimizers import (
    PlainPolicy,
    applied_learning_rate,
    build_optimizer,
    plain_policies,
    set_learning_rate,
)

NAMES = ["adam", "adamw", "radam", "sgd", "lamb", "adafactor"]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 2))


def needs_package(name):
    if name == "lamb":
        pytest.importorskip("pytorch_optimizer")


def steps(model, optimizer, number, *, seed=1):
    draw = torch.Generator().manual_seed(seed)
    for _ in range(number):
        optimizer.zero_grad()
        model(torch.randn(4, 3, generator=draw)).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer_lowers_the_loss(model, name):
    needs_package(name)
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(1))
    before = model(x).square().sum().item()
    optimizer = build_optimizer(OptimizerConfig(name=name, lr=1e-2), policies=plain_policies(model))
    steps(model, optimizer, 20)
    assert model(x).square().sum().item() < 0.9 * before


@pytest.mark.parametrize("name", NAMES)
def test_state_survives_the_way_through_tensors_and_numbers(model, name):
    needs_package(name)
    config = OptimizerConfig(name=name, lr=1e-2, weight_decay=0.1)
    optimizer = build_optimizer(config, policies=plain_policies(model))
    steps(model, optimizer, 3)
    own, numbers = optimizer_state(optimizer, parameters=dict(model.named_parameters()))
    tensors = {name: tensor.clone() for name, tensor in own.items()}
    again = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 2))
    again.load_state_dict(model.state_dict())
    resumed = build_optimizer(config, policies=plain_policies(again))
    parameters = dict(again.named_parameters())
    load_optimizer_state(resumed, parameters=parameters, tensors=tensors, numbers=numbers)
    steps(model, optimizer, 3, seed=2)
    steps(again, resumed, 3, seed=2)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_state_of_other_parameters_is_refused(model):
    optimizer = build_optimizer(OptimizerConfig(), policies=plain_policies(model))
    steps(model, optimizer, 1)
    parameters = dict(model.named_parameters())
    tensors, numbers = optimizer_state(optimizer, parameters=parameters)
    tensors["exp_avg.elsewhere"] = torch.zeros(1)
    with pytest.raises(CheckpointError, match="'elsewhere'"):
        load_optimizer_state(optimizer, parameters=parameters, tensors=tensors, numbers=numbers)


def test_adam_is_fused_and_equals_its_formula(model):
    config = OptimizerConfig(name="adam", lr=0.1, betas=(0.9, 0.98), eps=1e-3)
    optimizer = build_optimizer(config, policies=plain_policies(model))
    before = model[0].weight.detach().clone()
    steps(model, optimizer, 1)
    gradient = model[0].weight.grad
    expected = before - 0.1 * gradient / (gradient.abs() + 1e-3)
    torch.testing.assert_close(model[0].weight.detach(), expected)
    assert all(group["fused"] for group in optimizer.param_groups)


def test_multipliers_act_on_rate_decay_and_eps(model):
    rows = [
        ("0.weight", model[0].weight, PlainPolicy(lr=0.5, weight_decay=2.0, eps=3.0)),
        ("0.bias", model[0].bias, PlainPolicy(weight_decay=0.0)),
    ]
    config = OptimizerConfig(name="adamw", lr=0.2, weight_decay=0.1, eps=1e-4)
    optimizer = build_optimizer(config, policies=rows)
    set_learning_rate(optimizer, 0.02)
    first, second = optimizer.param_groups
    assert first["lr"] == pytest.approx(0.01)
    assert first["weight_decay"] == pytest.approx(0.2)
    assert first["eps"] == pytest.approx(3e-4)
    assert (second["lr"], second["weight_decay"]) == (0.02, 0.0)


def test_vectors_and_frozen_parameters_are_left_alone(model):
    model[2].weight.requires_grad_(False)
    config = OptimizerConfig(name="adamw", lr=1e-2, weight_decay=0.5)
    optimizer = build_optimizer(config, policies=plain_policies(model))
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert decay == {
        id(p): 0.5 * (p.dim() > 1) for n, p in model.named_parameters() if n != "2.weight"
    }


def test_lamb_moves_a_matrix_by_the_rate_times_its_norm(model):
    needs_package("lamb")
    optimizer = build_optimizer(
        OptimizerConfig(name="lamb", lr=0.01), policies=plain_policies(model)
    )
    before = model[0].weight.detach().clone()
    steps(model, optimizer, 1)
    moved = (model[0].weight.detach() - before).norm()
    assert moved.item() == pytest.approx(0.01 * before.norm().item(), rel=1e-4)


def test_lamb_without_its_package_says_what_to_install(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(ConfigError, match=r"deepnet-transformers\[optimizers\]"):
        build_optimizer(OptimizerConfig(name="lamb"), policies=plain_policies(model))


def test_adafactor_caps_the_rate_that_is_recorded():
    config = OptimizerConfig(name="adafactor")
    assert applied_learning_rate(config, lr=0.5, step=99) == 0.1
    assert applied_learning_rate(config, lr=0.01, step=99) == 0.01
    assert applied_learning_rate(OptimizerConfig(name="adam"), lr=0.5, step=99) == 0.5


def test_families():
    families = {name: optimizer_family(name) for name in NAMES}
    assert families == {
        "adam": "adam",
        "adamw": "adam",
        "radam": "adam",
        "sgd": "sgd",
        "lamb": "lamb",
        "adafactor": "lamb",
    }


def test_a_model_with_nothing_to_train_is_refused(model):
    model.requires_grad_(False)
    with pytest.raises(ConfigError, match="nothing to train"):
        build_optimizer(OptimizerConfig(), policies=plain_policies(model))
