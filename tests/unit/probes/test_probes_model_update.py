from collections import OrderedDict

import pytest
import torch
from torch import nn

from deepnet.errors import ConfigError
from deepnet.probes.model_update import ModelUpdate


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double()


def test_nothing_has_moved_at_first(model):
    probe = ModelUpdate(model, (torch.randn(5, 4).double(),), layers=["0"])
    assert {name: move.norm for name, move in probe.measure().items()} == {"": 0.0, "0": 0.0}


def test_movement_is_the_distance_by_hand(model):
    x = torch.randn(5, 4).double()
    probe = ModelUpdate(model, (x,), layers=["0", "2"])
    model.eval().requires_grad_(False)
    first = model[0](x), model(x)
    model[0].weight += 0.1
    found = probe.measure()
    hidden, output = model[0](x) - first[0], model(x) - first[1]
    assert found["0"].norm == pytest.approx(float(hidden.norm()), rel=1e-12)
    assert found[""].norm == found["2"].norm == pytest.approx(float(output.norm()), rel=1e-12)
    assert found[""].rms == pytest.approx(float(output.square().mean().sqrt()), rel=1e-12)
    assert found[""].relative == pytest.approx(float(output.norm() / first[1].norm()), rel=1e-12)


def test_the_model_is_left_as_it_was(model):
    model[1].train()
    model[2].eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    ModelUpdate(model, (torch.randn(5, 4).double(),), layers=["1"]).measure()
    assert [module.training for module in model] == [True, True, False]
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_modes_and_hooks_return_after_an_error(model):
    with pytest.raises(RuntimeError):
        ModelUpdate(model, (torch.randn(5, 7).double(),), layers=["0"])
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())


def test_a_layer_that_runs_twice_counts_twice(model):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2, bias=False)

        def forward(self, x):
            return self.inner(x) + self.inner(2 * x)

    twice, x = Twice(), torch.ones(1, 2)
    probe = ModelUpdate(twice, (x,), layers=["inner"])
    with torch.no_grad():
        twice.inner.weight += torch.eye(2)
    assert probe.measure()["inner"].norm == pytest.approx((1 + 1 + 4 + 4) ** 0.5, rel=1e-6)


def test_keyword_inputs_and_mappings_of_outputs():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, *, ids):
            return OrderedDict(loss=None, logits=self.inner(ids), cache=(1, 2))

    model = Named()
    probe = ModelUpdate(model, {"ids": torch.ones(1, 2)})
    with torch.no_grad():
        model.inner.bias += torch.tensor([3.0, 4.0])
    assert probe.measure()[""].norm == pytest.approx(5.0, rel=1e-6)


def test_works_on_torchs_own_transformer():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    probe = ModelUpdate(model, (torch.randn(2, 3, 16),), layers=["layers.0"])
    with torch.no_grad():
        model.layers[1].linear2.weight += 0.1
    found = probe.measure()
    assert found["layers.0"].norm == 0.0
    assert found[""].norm > 0.0


def test_an_unknown_layer_is_named(model):
    with pytest.raises(ConfigError, match="no module '00'; did you mean '0'"):
        ModelUpdate(model, (torch.randn(5, 4).double(),), layers=["00"])


def test_a_layer_that_does_not_run_is_named():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.idle = nn.Linear(2, 2)

        def forward(self, x):
            return x

    with pytest.raises(ConfigError, match="'idle' did not run"):
        ModelUpdate(Idle(), (torch.ones(1, 2),), layers=["idle"])
