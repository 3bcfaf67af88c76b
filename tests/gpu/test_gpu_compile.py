"""Layers compiled one by one on the device: the same numbers, and as many graphs at any depth."""

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # torch's compiler warns of itself
]


@pytest.fixture(autouse=True)
def _nothing_compiled():
    """Begin and end with nothing compiled, so that graphs are this test's."""
    torch.compiler.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):  # not go on uncompiled
        yield
    torch.compiler.reset()


def passes(model, updates):
    """Return the logits, and the gradient of all parameters in one row, of two batches of different lengths."""
    found = []
    for update in updates.listed[:2]:
        (batch,) = update.batches
        model.zero_grad()
        logits = model(batch.source, batch.source_keep, batch.target_in)
        logits.square().mean().backward()
        found += [logits.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])]
    return found


def compiled(model):
    for stack in model.stacks():
        for layer in stack.layers:
            layer.compile(dynamic=True)
    return model


@pytest.mark.parametrize("scheme", ["deepnorm", "pre_ln"])
def test_compiled_layers_compute_the_same_in_as_many_graphs_at_any_depth(
    make_small, updates, device, scheme
):
    graphs = []
    for layers in (2, 5):
        shape = {"layers": layers, "dropout": 0.0, "activation": "gelu"}
        expected = passes(make_small(scheme, **shape).to(device), updates)
        torch._dynamo.utils.counters.clear()
        found = passes(compiled(make_small(scheme, **shape).to(device)), updates)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        for ours, theirs in zip(found, expected, strict=True):
            # fused kernels round elsewhere: some tens of roundings of float32
            assert (ours - theirs).norm() < 1e-5 * theirs.norm()
    assert graphs[0] == graphs[1] > 0
