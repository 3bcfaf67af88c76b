"""The gradient's norm by parameter."""

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from deepnet.training.engine.base import gradient_norms


def with_gradients(*gradients, device="cpu"):
    """Return a parameter per gradient; None is one without."""
    parameters = [nn.Parameter(torch.empty(2, device=device)) for _ in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return parameters


def test_a_parameter_without_a_gradient_has_the_norm_0():
    found = gradient_norms(with_gradients(None, torch.tensor([3.0, 4.0]), None, torch.ones(2)))
    assert found.tolist() == [0.0, 5.0, 0.0, torch.tensor(2.0).sqrt().item()]


def test_no_number_goes_from_the_host_to_the_device():
    with (
        FakeTensorMode()
    ):  # has shapes of tensors on a card that is not there, and nowhere to copy numbers to
        parameters = with_gradients(None, torch.empty(2, device="cuda"), device="cuda")
        assert gradient_norms(parameters).device.type == "cuda"
