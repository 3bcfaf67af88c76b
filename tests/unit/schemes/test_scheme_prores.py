"""ProRes: each schedule's numbers, each base, and BranchNorm as a case of it."""

import itertools
import math
from typing import get_args

import pytest
import torch

import deepnet
from deepnet.errors import ConfigError, ExportError
from deepnet.schemes.catalogue import load_scheme
from deepnet.schemes.coefficients import coefficients
from deepnet.schemes.prores import Schedule, Scheme

BASES = ["pre_ln", "post_ln", "deepnorm", "peri_ln", "layernorm_scaling"]
GROWING = [name for name in get_args(Schedule) if not name.startswith("fixed")]


@pytest.mark.parametrize(
    ("schedule", "layer", "num_layers", "T", "step", "value"),
    [
        ("linear", 3, 6, 5, 10, 2 / 3),
        ("equal", 3, 6, 5, 10, 1 / 3),
        ("reverse", 3, 6, 5, 10, 10 / 20),
        ("sqrt", 3, 6, 5, 10, math.sqrt(2 / 3)),
        ("square", 3, 6, 5, 10, 4 / 9),
        ("stagewise_0", 4, 6, 5, 18, 0.6),
        ("stagewise_0", 4, 6, 5, 15, 0.0),
        ("stagewise_sqrt_l", 4, 6, 5, 18, 0.8),  # m = 4^(-1/2) = 0.5
        ("stagewise_sqrt_L", 4, 4, 5, 18, 0.8),
        ("stagewise_sqrt_L", 3, 4, 5, 9, 0.5),
        ("fixed_L", 3, 16, 5, 0, 1 / 16),
        ("fixed_sqrt_L", 3, 16, 5, 10**6, 1 / 4),
        ("fixed_sqrt_l", 4, 16, 5, 7, 1 / 2),
    ],
)
def test_factors(schedule, layer, num_layers, T, step, value):
    found = Scheme(T=T, schedule=schedule).factor(step, layer=layer, num_layers=num_layers)
    assert found == pytest.approx(value, rel=1e-14)


@pytest.mark.parametrize("schedule", GROWING)
def test_all_layers_reach_exactly_1_after_T_updates_per_layer_and_never_fall(schedule):
    T, num_layers = 7, 9
    for layer in range(1, num_layers + 1):
        scheme = Scheme(T=T, schedule=schedule)
        found = [
            scheme.factor(step, layer=layer, num_layers=num_layers)
            for step in range(T * num_layers + 5)
        ]
        assert found[T * num_layers :] == [1.0] * 5
        assert all(a <= b for a, b in itertools.pairwise(found))
        # T is per layer: the authors' --prores_warmup_steps is T times the layers
        last = schedule == "equal" or layer == (1 if schedule == "reverse" else num_layers)
        assert (found[T * num_layers - 1] < 1.0) == last


@pytest.mark.parametrize("base", BASES)
def test_the_base_is_left_but_for_the_branches_scale(make_model, sentences, base):
    ours, plain = make_model("prores", {"base": base, "T": 5}), make_model(base)
    gains = [
        {row["kind"]: row["gain"] for row in coefficients(s, encoder_layers=6, decoder_layers=5)["sites"]}
        for s in (load_scheme("prores", {"base": base}), load_scheme(base))
    ]  # fmt: skip
    assert gains[0] == gains[1]
    plain.load_state_dict(ours.state_dict())
    assert not torch.equal(ours(*sentences), plain(*sentences))
    ours.scheme.advance(ours, 5 * 2)
    assert torch.equal(ours(*sentences), plain(*sentences))


@pytest.mark.parametrize("base", BASES)
def test_it_folds_in_the_middle_as_its_base_does(make_model, sentences, base):
    model = make_model("prores", {"base": base, "T": 5}).eval()
    model.scheme.advance(model, 7)
    if load_scheme(base).folds_to is None:
        with pytest.raises(ExportError):
            deepnet.fold(model)
        return
    plain = deepnet.fold(model)
    torch.testing.assert_close(plain(*sentences), model(*sentences), rtol=0, atol=1e-10)


def test_sandwich_scales_what_its_outer_norm_returns(make_model, sentences):
    """The factor stands outside LN_out: inside it would cancel."""
    outputs = []
    for step in (3, 6):
        torch.manual_seed(1)
        model = make_model("prores", {"base": "peri_ln", "T": 5})
        model.scheme.advance(model, step)
        site = model.decoder.layers[1].sublayers["ffn"].residual
        y = torch.arange(16.0, dtype=torch.float64).expand(1, 1, 16)
        outputs.append(site(torch.zeros_like(y), y))
    torch.testing.assert_close(outputs[1], 2 * outputs[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("step", [0, 1, 137, 399, 400, 1000])
def test_branchnorm_is_post_ln_growing_in_equally_with_deepnorms_beta(sentences, make_model, step):
    """N = M = 2 and T = 200 per layer are BranchNorm's T = 400; what is left is beta, of the base deepnorm."""
    theirs = make_model("branchnorm", {"T": 400})
    ours = make_model("prores", {"base": "post_ln", "schedule": "equal", "T": 200})
    ours.load_state_dict(theirs.state_dict())
    for model in (ours, theirs):
        model.scheme.advance(model, step)
    assert torch.equal(ours(*sentences), theirs(*sentences))
    shape = {"encoder_layers": 2, "decoder_layers": 2}
    gains = [
        [row["gain"] for row in coefficients(load_scheme(*s), **shape)["sites"]]
        for s in (("branchnorm",), ("prores", {"base": "deepnorm"}))
    ]
    assert gains[0] == gains[1]


def test_the_factors_come_back_with_the_saved_step(make_model, sentences):
    ours, other = (make_model("prores", {"T": 10}) for _ in range(2))
    ours.scheme.advance(ours, 13)
    assert [name for name in ours.state_dict() if "factor" in name] == []
    other.load_state_dict(ours.state_dict())
    assert torch.equal(other(*sentences), ours(*sentences))


def test_what_is_fixed_is_a_constant():
    fixed = load_scheme("prores", {"schedule": "fixed_sqrt_L"})
    rows = coefficients(fixed, encoder_layers=16, decoder_layers=0)["sites"]
    assert {row["branch"] for row in rows} == {0.25}
    rows = coefficients(load_scheme("prores"), encoder_layers=16, decoder_layers=0)["sites"]
    assert {row["branch"] for row in rows} == {"scheduled"}


def test_no_update_per_layer_is_refused():
    with pytest.raises(ConfigError, match="T is 0"):
        Scheme(T=0)
