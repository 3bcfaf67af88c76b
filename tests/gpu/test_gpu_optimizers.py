"""Every optimiser, fused or not, makes the updates that torch's plain loop over tensors makes on a CPU."""

from typing import get_args

import pytest
import torch
from torch import nn

from deepnet.training.config import OptimizerConfig, OptimizerName
from deepnet.training.optimization.optimizers import PlainPolicy, build_optimizer

pytestmark = pytest.mark.gpu

SHAPES = [(3, 5), (7,), (64, 33), ()]


def stepped(name, device, dtype, *, plain):
    """Return the weights after five updates by gradients that are the same everywhere."""
    draw = torch.Generator().manual_seed(1)

    def numbers(shape):
        return torch.randn(shape, generator=draw, dtype=torch.float64).to(device, dtype)

    model = nn.ParameterList(nn.Parameter(numbers(shape)) for shape in SHAPES)
    config = OptimizerConfig(name=name, lr=1e-2, weight_decay=0.1)
    rows = [
        (n, p, PlainPolicy(weight_decay=float(p.dim() > 1), depth=int(p.dim() == 2)))
        for n, p in model.named_parameters()
    ]
    optimizer = build_optimizer(config, policies=rows)
    for group in optimizer.param_groups if plain else ():
        group |= {key: False for key in ("fused", "foreach") if key in group}
    for _ in range(5):
        for parameter in model:
            parameter.grad = numbers(parameter.shape)
        optimizer.step()
    return [parameter.detach().cpu().double() for parameter in model]


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_the_updates_are_those_of_a_plain_loop_on_the_cpu(name, device, dtype, error):
    if name == "lamb":
        pytest.importorskip("pytorch_optimizer")
    found = stepped(name, device, dtype, plain=False)
    expected = stepped(name, torch.device("cpu"), torch.float64, plain=True)
    if name == "muon":  # whose Newton-Schulz steps round to bfloat16: a hundredth of five updates
        error = max(error, 0.01 * 5 * 1e-2)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=error, atol=error)
