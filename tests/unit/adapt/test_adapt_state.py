"""The number of updates: counted by whichever optimiser owns the model, once each, and saved."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn

from deepnet import apply_scheme
from deepnet.transformer.scales import ScheduledScale


def factors(model: nn.Module) -> set[float]:
    return {float(m.factor) for m in model.modules() if isinstance(m, ScheduledScale)}


@pytest.fixture
def adopted(zoo) -> nn.Module:
    model = zoo.torch_encoder().train()
    apply_scheme(model, "branchnorm", options={"T": 10})
    return model


def update(model: nn.Module, optimizer: torch.optim.Optimizer, zoo, micro_batches: int = 1) -> None:
    optimizer.zero_grad()
    for _ in range(micro_batches):
        model(*zoo.inputs(model)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_a_plain_loop_advances_the_factor(adopted, zoo, micro_batches):
    assert factors(adopted) == {0.0}
    optimizer = torch.optim.AdamW(adopted.parameters())
    for step in range(1, 13):
        update(adopted, optimizer, zoo, micro_batches)
        assert factors(adopted) == {min(1.0, step / 10)}
    assert adopted.deepnet.step == 12


def test_other_peoples_optimisers_do_not_count(adopted, zoo):
    other = nn.Linear(2, 2)
    torch.optim.SGD(other.parameters(), lr=0.1).step()
    twin = copy.deepcopy(adopted)
    update(twin, torch.optim.SGD(twin.parameters(), lr=0.1), zoo)
    assert (adopted.deepnet.step, twin.deepnet.step) == (0, 1)


def test_two_optimisers_of_one_model_count_once(adopted, zoo):
    matrices = [p for p in adopted.parameters() if p.dim() == 2]
    others = [p for p in adopted.parameters() if p.dim() != 2]
    first, second = torch.optim.SGD(matrices, lr=0.1), torch.optim.AdamW(others)
    for _ in range(3):
        update(adopted, first, zoo)
        second.step()
    assert adopted.deepnet.step == 3


def test_a_model_as_a_part_counts(adopted, zoo):
    whole = nn.Sequential(adopted, nn.Linear(16, 3).double())
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    whole(*zoo.inputs(adopted)).sum().backward()
    optimizer.step()
    assert adopted.deepnet.step == 1


def test_frozen_lower_layers_do_not_hide_the_optimiser(adopted, zoo):
    adopted.layers[0].requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in adopted.parameters() if p.requires_grad], lr=0.1)
    update(adopted, optimizer, zoo)
    assert adopted.deepnet.step == 1


def test_a_pickled_model_goes_on_counting(adopted, zoo):
    adopted.deepnet.advance(4)
    twin = pickle.loads(pickle.dumps(adopted.deepnet._model[0].layers[0].self_attn))
    assert isinstance(twin, nn.MultiheadAttention)
    other = copy.deepcopy(adopted)
    update(other, torch.optim.SGD(other.parameters(), lr=0.1), zoo)
    assert factors(other) == {0.5}


def test_the_hook_keeps_no_model_alive(zoo):
    model = zoo.torch_encoder()
    apply_scheme(model, "branchnorm")
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_skipped_update_does_not_count(adopted, zoo):
    optimizer = torch.optim.SGD(adopted.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for broken in (True, False):
        optimizer.zero_grad()
        scaler.scale(adopted(*zoo.inputs(adopted)).square().sum()).backward()
        if broken:
            adopted.layers[0].linear1.weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
    assert adopted.deepnet.step == 1
