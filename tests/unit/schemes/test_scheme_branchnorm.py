"""BranchNorm's schedule: from nothing to exactly Post-LN, saved as a step."""

import itertools

import pytest
import torch

from deepnet.errors import ConfigError
from deepnet.schemes.branchnorm import Scheme


@pytest.mark.parametrize("growth", ["linear", "exp", "sigmoid"])
def test_growth_runs_from_0_to_exactly_1_and_never_falls(growth):
    scheme = Scheme(T=400, growth=growth)
    factors = [scheme.factor(step) for step in range(500)]
    assert factors[0] == 0.0
    assert factors[400:] == [1.0] * 100
    assert all(a <= b for a, b in itertools.pairwise(factors))
    assert factors[399] < 1.0


def test_growth_values():
    assert Scheme(T=4000).factor(1000) == 0.25
    assert Scheme(T=400, growth="sigmoid").factor(200) == pytest.approx(0.5, abs=1e-12)
    # (1 - e^-0.2) / (1 - e^-0.4)
    assert Scheme(T=400, growth="exp").factor(200) == pytest.approx(0.5498339973, abs=1e-10)


def test_after_T_it_is_bitwise_post_ln(make_model, sentences):
    ours, plain = make_model("branchnorm", {"T": 10}), make_model("post_ln")
    ours.scheme.advance(ours, 10)
    plain.load_state_dict(ours.state_dict())
    assert torch.equal(ours(*sentences), plain(*sentences))


def test_the_factor_comes_back_with_the_saved_step(make_model, sentences):
    ours = make_model("branchnorm", {"T": 10})
    ours.scheme.advance(ours, 3)
    saved = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    assert [name for name in saved if "factor" in name] == []
    assert saved["scheme_step"].tolist() == [3]
    other = make_model("branchnorm", {"T": 10})
    other.load_state_dict(saved)
    assert torch.equal(other(*sentences), ours(*sentences))


def test_at_step_0_only_what_is_outside_the_branches_learns(make_model, sentences):
    ours = make_model("branchnorm")
    ours(*sentences).logsumexp(-1).sum().backward()
    learning = {name for name, p in ours.named_parameters() if p.grad.abs().max() > 0}
    branches = {name for name, _ in ours.named_parameters() if ".branch." in name}
    # the encoder is read by branches only, so that nothing of it but the shared embedding learns
    encoder = {name for name, _ in ours.named_parameters() if name.startswith("encoder.")}
    assert learning.isdisjoint(branches | encoder)
    assert "target_embedding.weight" in learning
    assert any(name.startswith("decoder.") for name in learning)


@pytest.mark.parametrize("options", [{"T": 0}, {"exp_rate": 0.0}, {"sigmoid_steepness": -1.0}])
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError, match=str(next(iter(options.values())))):
        Scheme(**options)
