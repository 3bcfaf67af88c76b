"""What is read of a model, against plain computations of the same."""

import pytest
import torch
import torch.nn.functional as F

from deepnet.data.loader import Batch
from deepnet.experiments.measures import (
    active_share,
    gradient_norms,
    held_out_loss,
    layer_similarity,
    norm_inputs,
    output_update,
)


@pytest.fixture
def model(make_model):
    return make_model("post_ln", dropout=0.5)


@pytest.fixture
def batch(sentences):
    source, keep, target_in = sentences
    return Batch(
        source=source,
        source_keep=keep,
        target_in=target_in,
        target_out=target_in.clamp(max=28),
        num_tokens=12,
        num_source_tokens=13,
    )


def decoded(model, batch):
    """Return the decoder's output by a hook of our own."""
    kept = []
    hook = model.stacks()[-1].register_forward_hook(lambda m, a, output: kept.append(output))
    with torch.no_grad():
        model.eval()(batch.source, batch.source_keep, batch.target_in)
    hook.remove()
    return kept[0]


def test_the_update_is_the_distance_from_the_first_output_without_dropout(model, batch):
    read = output_update(model.train(), batch)
    assert read() == {"update": 0.0, "logit_update": 0.0}
    before = decoded(model, batch)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    moved = decoded(model, batch) - before
    model.train()
    assert read()["update"] == pytest.approx(moved.square().mean().sqrt().item(), rel=1e-4)
    assert model.training


def test_the_loss_is_the_mean_cross_entropy(model, batch):
    model.eval()
    logits = model(batch.source, batch.source_keep, batch.target_in)
    expected = F.cross_entropy(logits.flatten(0, 1), batch.target_out.flatten())
    assert held_out_loss(model.train(), batch)()["loss"] == pytest.approx(expected.item(), rel=1e-4)


def test_the_gradient_is_that_of_the_loss_and_leaves_gradients_as_they_were(model, batch):
    held = {p: torch.ones_like(p) for p in model.parameters()}
    for parameter, gradient in held.items():
        parameter.grad = gradient
    found = gradient_norms(model.train(), batch)()
    assert all(p.grad is held[p] for p in held)
    logits = model.eval()(batch.source, batch.source_keep, batch.target_in)
    loss = F.cross_entropy(logits.flatten(0, 1), batch.target_out.flatten())
    named = dict(model.named_parameters())
    gradients = dict(
        zip(named, torch.autograd.grad(loss, list(named.values()), allow_unused=True), strict=True)
    )
    whole = sum(g.square().sum() for g in gradients.values() if g is not None) ** 0.5
    assert found["gradient"] == pytest.approx(whole.item(), rel=1e-4)
    matrices = [
        g for name, g in gradients.items() if name.startswith("decoder.layers.1.") and g.dim() == 2
    ]
    assert len(matrices) == 10  # q, k, v, out twice, and fc1, fc2
    layer = sum(g.square().sum() for g in matrices) ** 0.5
    assert found["layer_gradient"]["decoder"][1] == pytest.approx(layer.item(), rel=1e-4)


def test_inputs_of_norms_are_read_by_site_for_every_layer(model, batch):
    found = norm_inputs(model.train(), batch)()["norm_input"]
    assert {
        "encoder.self",
        "encoder.ffn",
        "decoder.self",
        "decoder.cross",
        "decoder.ffn",
    } <= found.keys()
    assert [len(row) for row in found.values()] == [2] * len(found)
    norms = [
        m for name, m in model.named_modules() if name.startswith("decoder") and "post" in name
    ]
    seen = []
    hook = norms[-1].register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    decoded(model, batch)
    hook.remove()
    rms = seen[0].square().mean().sqrt().item()
    assert found["decoder.ffn"][-1] == pytest.approx(rms, rel=1e-4)


def test_layers_are_compared_by_the_cosine_of_their_outputs(model, batch):
    outputs = []
    hooks = [
        layer.register_forward_hook(lambda m, a, output: outputs.append(output))
        for layer in model.decoder.layers
    ]
    with torch.no_grad():
        model.eval()(batch.source, batch.source_keep, batch.target_in)
    for hook in hooks:
        hook.remove()
    first, second = (output if torch.is_tensor(output) else output[0] for output in outputs)
    products = (first * second).sum(-1) / (first.norm(dim=-1) * second.norm(dim=-1))
    found = layer_similarity(model.train(), batch)()
    assert found == {"similarity": pytest.approx(products.mean().item(), rel=1e-4)}
    assert model.training


def test_active_is_what_relu_lets_through(model, batch):
    shares = []
    firsts = [m for name, m in model.named_modules() if name.endswith("fc1")]
    hooks = [
        m.register_forward_hook(lambda m, a, y: shares.append((y > 0).double().mean().item()))
        for m in firsts
    ]
    with torch.no_grad():
        model.eval()(batch.source, batch.source_keep, batch.target_in)
    for hook in hooks:
        hook.remove()
    assert len(shares) == 4  # two layers a side
    assert active_share(model, batch)() == {"active": pytest.approx(sum(shares) / 4, rel=1e-6)}
