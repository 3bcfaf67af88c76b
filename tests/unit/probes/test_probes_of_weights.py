"""Gradient norms against finite differences, update ratios against the arithmetic of SGD."""

import pytest
import torch
import transformers
from torch import Tensor, nn

from deepnet import GradientNorm, UpdateRatio
from deepnet.probes.place import Place


def finite_differences(model: nn.Module, loss) -> dict[str, Tensor]:
    """Return the gradient of each parameter by central differences of every element."""
    step, found = 1e-5, {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            flat, gradient = parameter.view(-1), torch.zeros(parameter.numel(), dtype=torch.float64)
            for index in range(len(flat)):
                value = float(flat[index])
                flat[index] = value + step
                above = float(loss())
                flat[index] = value - step
                gradient[index] = (above - float(loss())) / (2 * step)
                flat[index] = value
            found[name] = gradient.view_as(parameter)
    return found


def check(model, loss, expected):
    """Compare the readings after a backward pass with norms of the slices that `expected` takes."""
    with GradientNorm(model) as probe:
        loss().backward()
    model.zero_grad()
    readings = probe.readings()
    by_hand = {
        place: float(g.norm()) for place, g in expected(finite_differences(model, loss)).items()
    }
    for place, value in by_hand.items():
        assert readings[place] == pytest.approx(value, rel=1e-6, abs=1e-9), place


def test_our_own_model(make_model, sentences):
    source, keep, _ = sentences
    model = make_model(
        "post_ln", architecture="encoder_only", encoder_layers=2, decoder_layers=0, d_model=4,
        ffn_dim=6, num_heads=2, vocab_size=7, tie_embeddings="none",
    )  # fmt: skip
    source = source % 6

    def loss():
        return model(source, keep).square().mean()

    def expected(g):
        places = {Place("", 0, "vocabulary"): g["vocabulary.rows.weight"]}
        for n in (1, 2):
            own = f"encoder.layers.{n - 1}.sublayers"
            places |= {
                Place("encoder", n, "self", role): g[f"{own}.self.branch.{role}.weight"]
                for role in ("q", "k", "v", "out")
            }
            places[Place("encoder", n, "ffn", "fc1")] = g[f"{own}.ffn.branch.fc1.weight"]
            norm = [g[f"{own}.ffn.residual.post.{name}"] for name in ("weight", "bias")]
            places[Place("encoder", n, "ffn", "norm")] = torch.cat(norm)
            biases = [g[f"{own}.ffn.branch.{name}.bias"] for name in ("fc1", "fc2")]
            places[Place("encoder", n, "ffn", "bias")] = torch.cat(biases)
        return places

    check(model, loss, expected)


def test_gpt2_by_slices_of_the_packed_matrix():
    config = transformers.GPT2Config(
        vocab_size=7, n_embd=4, n_layer=1, n_head=2, n_positions=5, n_inner=6, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.5,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).double()
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 1]])

    def loss():
        return model(input_ids=ids).logits.square().mean()

    def expected(g):
        packed = g["transformer.h.0.attn.c_attn.weight"]
        places = {
            Place("decoder", 1, "self", role): packed[:, index * 4 : index * 4 + 4]
            for index, role in enumerate("qkv")
        }
        places[Place("decoder", 1, "self", "bias")] = torch.cat(
            [g["transformer.h.0.attn.c_attn.bias"], g["transformer.h.0.attn.c_proj.bias"]]
        )
        places[Place("decoder", 1, "ffn", "fc2")] = g["transformer.h.0.mlp.c_proj.weight"]
        places[Place("", 0, "embedding")] = g["transformer.wte.weight"]
        places[Place("", 0, "embedding", "position")] = g["transformer.wpe.weight"]
        return places

    check(model, loss, expected)


def test_accumulated_gradients_and_none():
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True),
        1,
        enable_nested_tensor=False,
    ).double()
    x = torch.randn(2, 3, 4).double()
    assert GradientNorm(model).readings() == {}
    with GradientNorm(model) as probe:
        model(x).square().sum().backward()
        once = probe.readings()
        model(x).square().sum().backward()
    twice = probe.readings()
    assert twice == pytest.approx({place: 2 * value for place, value in once.items()}, rel=1e-9)


def test_update_ratio_is_the_step_of_sgd_over_the_weight(zoo):
    model = zoo.torch_transformer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(*zoo.inputs(model)).square().mean().backward()
    layer = model.encoder.layers[0]
    packed = layer.self_attn.in_proj_weight.detach().clone()
    gradient = layer.self_attn.in_proj_weight.grad
    k = float(0.1 * gradient[16:32].norm() / packed[16:32].norm())
    fc1 = float(0.1 * layer.linear1.weight.grad.norm() / layer.linear1.weight.detach().norm())
    with UpdateRatio(model) as probe:
        optimizer.step()
        assert probe.readings() == {}
    readings = probe.readings()
    assert readings[Place("encoder", 1, "self", "k")] == pytest.approx(k, rel=1e-9)
    assert readings[Place("encoder", 1, "ffn", "fc1")] == pytest.approx(fc1, rel=1e-9)
    assert len(readings) == 2 * 6 + 3 * 10
    with probe:
        pass
    assert set(probe.readings().values()) == {0.0}


def test_update_ratio_of_a_hugging_face_model(zoo):
    model = zoo.llama()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with UpdateRatio(model) as probe, torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    after = {name: p.detach() for name, p in model.named_parameters()}
    for place, name in (
        (Place("decoder", 2, "ffn", "gate"), "model.layers.1.mlp.gate_proj.weight"),
        (Place("", 0, "vocabulary"), "lm_head.weight"),
    ):
        expected = float((after[name] - before[name]).norm() / before[name].norm())
        assert probe.readings()[place] == pytest.approx(expected, rel=1e-9)
