"""nGPT: the stream and the weights are and stay of unit length, and its scales learn at their own rate."""

import pytest
import torch

from deepnet.errors import ConfigError
from deepnet.schemes.ngpt import Scheme
from deepnet.training.config import OptimizerConfig
from deepnet.training.optimization.optimizers import LR_MULTIPLIER, build_optimizer
from deepnet.transformer.initialize import parameter_policies

SHAPE = {"architecture": "decoder_only", "encoder_layers": 0, "tie_embeddings": "none"}


@pytest.fixture
def model(make_model):
    made = make_model("ngpt", activation="swiglu", **SHAPE)
    made.scheme.prepare(made, iter([]))
    return made


def _lengths(model):
    for weight in model.role_weights():
        rows = weight.parameter.T if weight.role in ("out", "fc2") else weight.parameter
        rows = rows[:-1] if weight.role in ("embedding", "vocabulary") else rows
        assert rows.shape[1] == 16
        yield rows.norm(dim=1)


def test_every_row_has_unit_length_at_the_start_and_after_an_update(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    source = torch.randint(0, 29, (3, 4))
    for _ in range(2):
        for lengths in _lengths(model):
            torch.testing.assert_close(lengths, torch.ones_like(lengths))
        optimizer.zero_grad()
        model(source).logsumexp(-1).sum().backward()
        optimizer.step()
        assert any((lengths - 1).abs().max() > 0.01 for lengths in _lengths(model))
        model.scheme.after_update(model)
    assert not model.target_embedding.weight[-1].any()  # padding's row


def test_the_stream_stays_on_the_sphere(model):
    lengths = []
    for module in (model.decoder.entry, *model.decoder.layers):
        module.register_forward_hook(lambda *call: lengths.append(call[2].norm(dim=-1)))
    model(torch.randint(0, 29, (3, 4)))
    assert len(lengths) == 3
    for length in lengths:
        torch.testing.assert_close(length, torch.ones_like(length))


def test_at_the_start_a_site_goes_the_stated_part_of_the_way(model):
    ffn = model.decoder.layers[0].sublayers["ffn"]
    x = torch.nn.functional.normalize(torch.randn(2, 3, 16, dtype=torch.float64), dim=-1)
    y = torch.nn.functional.normalize(ffn.branch(x), dim=-1)
    found = ffn.stream.write(x, x, ffn.residual, ffn.branch(x))
    torch.testing.assert_close(found, torch.nn.functional.normalize(0.95 * x + 0.05 * y, dim=-1))


def test_scales_learn_at_sqrt_d_times_the_rate_and_nothing_is_decayed(model):
    config = OptimizerConfig(name="adamw", lr=1e-3, weight_decay=0.1)
    groups = build_optimizer(config, policies=parameter_policies(model)).param_groups
    rates = {id(p): group[LR_MULTIPLIER] for group in groups for p in group["params"]}
    scales = {n: p for n, p in model.named_parameters() if n.endswith(("factor", "scale"))}
    assert len(scales) == 2 * (2 + 1 + 2) + 1  # a, s_qk, s_u and s_v per layer; s_z
    matrices = {id(weight.parameter) for weight in model.role_weights()}
    assert matrices | {id(p) for p in scales.values()} == rates.keys()
    assert {rates[id(p)] for p in scales.values()} == {4.0}
    assert {rates[i] for i in matrices} == {1.0}
    assert {group["weight_decay"] for group in groups} == {0.0}


def test_lengths_are_computed_in_float32_at_least(model):
    ffn = model.decoder.layers[0].sublayers["ffn"]
    assert ffn.residual.out(torch.randn(2, 16, dtype=torch.bfloat16)).dtype == torch.float32


@pytest.mark.parametrize("step", [0.0, -0.5])
def test_a_step_that_is_not_positive_is_refused(step):
    with pytest.raises(ConfigError, match=f"step is {step}"):
        Scheme(step=step)


def test_it_trains_under_autocast(model):
    model.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(torch.randint(0, 29, (3, 4)))
    logits.float().logsumexp(-1).sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
