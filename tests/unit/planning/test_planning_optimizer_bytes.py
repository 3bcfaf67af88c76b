"""Bytes that an optimiser keeps, against those of a real one that has stepped a whole model."""

import pytest
import torch
from torch import nn

from deepnet.planning.optimizer_bytes import optimizer_tensors, step_bytes
from deepnet.training.checkpoint.optimizer_state import optimizer_state
from deepnet.training.config import OptimizerConfig
from deepnet.training.optimization.optimizers import (
    PlainPolicy,
    build_optimizer,
    plain_policies,
)

NAMES = {
    "adam": {}, "adamw": {}, "radam": {}, "sgd": {}, "sgd with momentum": {"momentum": 0.9},
    "lamb": {}, "adafactor": {},
}  # fmt: skip
CPU = torch.device("cpu")


@pytest.mark.parametrize("name", NAMES)
def test_states_are_those_of_an_optimiser_that_has_stepped(name):
    if name == "lamb":
        pytest.importorskip("pytorch_optimizer")
    config = OptimizerConfig(name=name.split()[0], **NAMES[name])
    model = nn.Sequential(nn.Linear(8, 24), nn.LayerNorm(24), nn.Conv1d(24, 2, 3))
    optimizer = build_optimizer(config, policies=plain_policies(model))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    parameters = dict(model.named_parameters())
    real, _ = optimizer_state(optimizer, parameters=parameters)
    found = optimizer_tensors(config, parameters)
    assert {n: (t.shape, t.dtype) for n, t in found.items()} == {
        n: (t.shape, t.dtype) for n, t in real.items()
    }


def test_muon_keeps_one_tensor_of_a_matrix_and_steps_the_largest_in_half_precision():
    torch.manual_seed(0)
    model = nn.ModuleDict({"inside": nn.Linear(40, 30), "table": nn.Embedding(50, 40)})
    config = OptimizerConfig(name="muon")
    rows = [
        (name, p, PlainPolicy(depth=int(name == "inside.weight")))
        for name, p in model.named_parameters()
    ]
    optimizer = build_optimizer(config, policies=rows)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    parameters = dict(model.named_parameters())
    real, _ = optimizer_state(optimizer, parameters=parameters)
    found = optimizer_tensors(config, parameters, matrices=["inside.weight"])
    assert {n: (t.shape, t.dtype) for n, t in found.items()} == {
        n: (t.shape, t.dtype) for n, t in real.items()
    }
    matrix = model["inside"].weight.nbytes
    for device in (CPU, torch.device("cuda")):
        needed = step_bytes(config, parameters, device=device, matrices=["inside.weight"])
        assert matrix <= needed <= 4 * matrix  # the update, and five copies of half its size


def test_a_fused_step_needs_nothing_and_others_at_most_a_few_times_the_largest_parameter():
    parameters = {"small": torch.ones(4, 4), "large": torch.ones(100, 100)}
    needed = {
        name: step_bytes(OptimizerConfig(name=name), parameters, device=CPU) / 40_000
        for name in ("adam", "sgd", "radam", "adafactor")
    }
    assert needed["adam"] == needed["sgd"] == 0
    assert 1 <= needed["radam"] <= 6
    assert 1 <= needed["adafactor"] <= 6
    decayed = OptimizerConfig(name="sgd", weight_decay=0.1)
    assert step_bytes(decayed, parameters, device=CPU) == 40_000  # the gradient with the decay


def test_on_a_card_what_is_not_fused_steps_all_parameters_at_once():
    parameters = {"small": torch.ones(4, 4), "large": torch.ones(100, 100)}
    config = OptimizerConfig(name="radam")
    one, all_ = (step_bytes(config, parameters, device=torch.device(d)) for d in ("cpu", "cuda"))
    assert all_ > one / 2
    assert step_bytes(OptimizerConfig(name="adam"), parameters, device=torch.device("cuda")) == 0
