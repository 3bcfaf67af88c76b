"""Layers compiled one by one on the device: the same numbers, and as many graphs at any depth."""

import pytest
import torch

from deepnet.record import read_jsonl
from training_worker import compiled

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


def test_compiled_layers_compute_the_same_in_as_many_graphs_at_any_depth(
    make_small, updates, device
):
    graphs = []
    for layers in (2, 5):
        shape = {"layers": layers, "dropout": 0.0, "activation": "gelu"}
        expected = passes(make_small(**shape).to(device), updates)
        torch.compiler.reset()
        torch._dynamo.utils.counters.clear()
        model = make_small(**shape).to(device)
        with compiled(model, "layers", ours=True):
            found = passes(model, updates)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        for ours, theirs in zip(found, expected, strict=True):
            # fused kernels round elsewhere: some tens of roundings of float32
            assert (ours - theirs).norm() < 1e-5 * theirs.norm()
    assert graphs[0] == graphs[1] > 0


def test_a_run_that_is_compiled_has_the_losses_of_one_that_is_not(train, make_small):
    losses = []
    for name in ("off", "blocks"):
        _, run = train(name, model=make_small(dropout=0.0), compile=name)
        losses.append([record["loss"] for record in read_jsonl(run.metrics_path)])
    # roundings of float32, twelve updates on
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
