"""CompleteP: every multiplier of its table reaches the optimiser, and the base model has none."""

import pytest
import torch

from deepnet.errors import ConfigError
from deepnet.schemes.completep import Scheme
from deepnet.training.config import OptimizerConfig
from deepnet.training.optimization.optimizers import build_optimizer
from deepnet.transformer.initialize import parameter_policies


def _group_of(model, name):
    optimizer = build_optimizer(
        OptimizerConfig(name="adamw", lr=1.0, weight_decay=1.0, eps=1.0),
        policies=parameter_policies(model),
    )
    parameter = dict(model.named_parameters())[name]
    group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    return group["lr"], group["weight_decay"], group["eps"]


@pytest.mark.parametrize("a", [1.0, 0.5])
def test_the_table_of_the_paper(make_model, a):
    model = make_model(
        "completep", {"depth_exponent": a, "d_base": 4}, encoder_layers=8, decoder_layers=8
    )
    m_n, m_l = 16 / 4, 8 / 2
    eps = 1 / m_n * m_l**-a
    layer = "encoder.layers.3.sublayers.ffn."
    hidden = (1 / m_n * m_l ** (a - 1), m_n, eps)
    assert _group_of(model, layer + "branch.fc1.weight") == pytest.approx(hidden)
    assert _group_of(model, layer + "branch.fc1.bias") == pytest.approx((m_l ** (a - 1), 0, eps))
    assert _group_of(model, layer + "residual.pre.weight") == pytest.approx(
        (m_l ** (a - 1), 0, eps)
    )
    assert _group_of(model, "target_embedding.weight") == pytest.approx((1, 1, eps))
    assert _group_of(model, "decoder.ends.final.weight") == pytest.approx((1, 0, eps))


def test_logits_are_divided_by_the_width_ratio(make_model):
    wide = make_model("completep", {"d_base": 4})
    base = make_model("completep", {"d_base": 16})
    x = torch.randn(1, 2, 16, dtype=torch.float64)
    base.load_state_dict(wide.state_dict())
    torch.testing.assert_close(4 * wide.project(x), base.project(x), rtol=1e-12, atol=1e-12)


def test_at_the_base_shape_every_multiplier_is_one(make_model):
    model = make_model("completep", {"d_base": 16, "L_base": 2})
    groups = {(p.lr, p.eps) for _, _, p in parameter_policies(model)}
    assert groups == {(1.0, 1.0)}


def test_stacks_of_unequal_depth_share_their_embedding(make_model):
    model = make_model("completep", encoder_layers=4, decoder_layers=1)
    assert model.source_embedding is model.target_embedding


def _first_change(make_model, *options, layers, d_model):
    """Return the root mean square change of a decoder's output by one Adam update of all but its embedding."""
    shape = {"architecture": "decoder_only", "encoder_layers": 0, "decoder_layers": layers}
    model = make_model(*options, d_model=d_model, ffn_dim=4 * d_model, **shape)
    config = OptimizerConfig(name="adamw", lr=1e-3, eps=1e-12)
    optimizer = build_optimizer(config, policies=parameter_policies(model))
    source = torch.randint(2, 29, (4, 8), generator=torch.Generator().manual_seed(1))
    outputs = []
    model.decoder.register_forward_hook(lambda *call: outputs.append(call[2].detach()))
    logits = model(source)
    torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), source[:, 1:].flatten()
    ).backward()
    model.target_embedding.weight.grad = None
    optimizer.step()
    model(source)
    return (outputs[1] - outputs[0]).square().mean().sqrt().item()


@pytest.mark.parametrize("a", [1.0, 0.5])
@pytest.mark.parametrize("large", [{"layers": 32, "d_model": 16}, {"layers": 2, "d_model": 128}])
def test_the_first_update_moves_a_large_model_as_far_as_the_base_model(make_model, a, large):
    options = "completep", {"depth_exponent": a, "d_base": 16}
    base = _first_change(make_model, *options, layers=2, d_model=16)
    assert _first_change(make_model, *options, **large) == pytest.approx(base, rel=0.25)
    plain = _first_change(make_model, "pre_ln", layers=2, d_model=16)
    assert _first_change(make_model, "pre_ln", **large) > 2 * plain


@pytest.mark.parametrize("options", [{"depth_exponent": 0.4}, {"d_base": 0}, {"base_std": -1.0}])
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError, match=str(next(iter(options.values())))):
        Scheme(**options)


def test_embeddings_enter_at_unit_size_whatever_they_are_drawn_from(make_model):
    model = make_model("completep", {"base_std": 0.5}, vocab_size=2000)
    ids = torch.arange(2, 1998)[None]
    assert model.target_embedding.weight[:-1].std().item() == pytest.approx(0.5, rel=0.02)
    entered = model.encoder.entry(model.source_embedding(ids), 0)
    positions = model.encoder.entry(torch.zeros_like(entered), 0)
    assert (entered - positions).std().item() == pytest.approx(1.0, rel=0.02)
