"""Every scheme under recompute: the same gradients bit for bit, dropout and moved parameters included."""

from contextlib import nullcontext

import cases
import pytest
import torch

from deepnet.testing.scheme_models import (
    case_architectures,
    case_model,
    example_batch,
    example_loss,
)
from deepnet.training.engine.recompute import list_chains, recomputed, recomputed_segments


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: f"{case.name}{dict(case.options)}")
@pytest.mark.parametrize("segment", [1, 2, 0])
def test_gradients_are_the_same(case, segment):
    architecture = case_architectures(case)[0]
    torch.manual_seed(1)
    model = case_model(case, architecture, layers=2 if segment == 1 else 3, dropout=0.1)
    model.scheme.advance(model, 700)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    chains = list_chains(model)
    blocks = [layer for chain in chains for layer in chain]
    again = recomputed(blocks) if segment == 1 else recomputed_segments(chains, num_layers=segment)
    seen = []
    for context in (nullcontext(), again):
        model.zero_grad()
        torch.manual_seed(2)
        with context:
            torch.autograd.backward(example_loss(model, example_batch(architecture)))
        seen.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert seen[0].keys() == seen[1].keys()
    for name, gradient in seen[0].items():
        assert torch.equal(seen[1][name], gradient), name
