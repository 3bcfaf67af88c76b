"""Every scheme under recompute: the same gradients bit for bit, dropout and moved parameters included."""

import cases
import pytest
import torch

from deepnet.testing.scheme_models import (
    case_architectures,
    case_model,
    example_batch,
    example_loss,
)
from deepnet.training.engine.recompute import recomputed


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: f"{case.name}{dict(case.options)}")
def test_gradients_are_the_same(case):
    architecture = case_architectures(case)[0]
    torch.manual_seed(1)
    model = case_model(case, architecture, dropout=0.1)
    model.scheme.advance(model, 700)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    blocks = [layer for stack in model.stacks() for layer in stack.layers]
    seen = []
    for again in ([], blocks):
        model.zero_grad()
        torch.manual_seed(2)
        with recomputed(again):
            torch.autograd.backward(example_loss(model, example_batch(architecture)))
        seen.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert seen[0].keys() == seen[1].keys()
    for name, gradient in seen[0].items():
        assert torch.equal(seen[1][name], gradient), name
