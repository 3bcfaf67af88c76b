"""What every scheme that keeps a history has to show: recompute changes no gradient."""

import torch
from torch.utils.checkpoint import checkpoint


def check_recompute(model, sentences):
    """Raise AssertionError where layers that torch's checkpoint computes again give other gradients, float64."""
    expected = _gradients(model, sentences)
    for stack in model.stacks():
        for layer in stack.layers:
            forward = layer.forward
            layer.forward = lambda *args, f=forward: checkpoint(f, *args, use_reentrant=False)
    for found, gradient in zip(_gradients(model, sentences), expected, strict=True):
        torch.testing.assert_close(found, gradient, rtol=1e-12, atol=1e-12)


def _gradients(model, sentences):
    model.zero_grad()
    model(*sentences).logsumexp(-1).sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]
