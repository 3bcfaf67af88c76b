"""Muon beside AdamW: torch's own two on the same split, whose matrices they are, rates, states, refusals."""

import copy
import re

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from deepnet.config import build
from deepnet.errors import CheckpointError, ConfigError
from deepnet.schemes.catalogue import list_schemes, load_scheme
from deepnet.training.checkpoint.optimizer_state import load_optimizer_state, optimizer_state
from deepnet.training.config import MuonConfig, OptimizerConfig, optimizer_family
from deepnet.training.optimization.muon import PART
from deepnet.training.optimization.optimizers import (
    PlainPolicy,
    build_optimizer,
    plain_policies,
    set_learning_rate,
)
from deepnet.transformer.initialize import parameter_policies
from deepnet.transformer.models import Transformer, TransformerConfig

MATRIX = re.compile(r"\.branch\.(q|k|v|out|fc1|gate|fc2)\.weight$")
MUON = {"name": "muon", "lr": 1e-2}


def made(scheme="deepnorm", options=None, dtype=torch.float64, **shape):
    """Return a small model, of both stacks where the scheme has them."""
    plan = load_scheme(scheme, options or {})
    architecture = shape.pop("architecture", plan.architectures[0])
    shape = {
        "encoder_layers": 2 * (architecture != "decoder_only"),
        "decoder_layers": 3 * (architecture != "encoder_only"),
        "tie_embeddings": "decoder" if scheme == "t_fixup" else "all",
        "dropout": 0.0,
        **shape,
    }
    torch.manual_seed(0)
    config = TransformerConfig(
        architecture=architecture, d_model=8, ffn_dim=12, num_heads=2, vocab_size=20, **shape
    )
    return Transformer(config, plan).to(dtype)


def optimizer_of(model, **config):
    return build_optimizer(OptimizerConfig(**config), policies=parameter_policies(model))


def train(model, optimizers, updates, *, scaler=None):
    """Let the optimisers step on a loss of ids that are the same for every model."""
    both = model.config.architecture == "encoder_decoder"
    for update in updates:
        ids = torch.randint(2, 18, (3, 5), generator=torch.Generator().manual_seed(update))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = model(ids, None, ids).logsumexp(-1).mean() if both else model(ids).square().mean()
        (scaler.scale(loss) if scaler else loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer) if scaler else optimizer.step()
        if scaler:
            scaler.update()


def names_by_part(model, optimizer):
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = {"muon": set(), "adamw": set()}
    for group in optimizer.param_groups:
        found[group[PART]] |= {names[parameter] for parameter in group["params"]}
    return found


# Against torch ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjust_lr", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("scheme", ["deepnorm", "mhc", "scale_norm"])
def test_it_makes_the_updates_of_torchs_two_on_the_same_split(scheme, nesterov, adjust_lr):
    model = made(scheme, tie_embeddings="none", activation="swiglu")
    theirs = copy.deepcopy(model)
    given = {"lr": 0.02, "weight_decay": 0.05, "momentum": 0.9, "nesterov": nesterov, "ns_steps": 4}
    ours = optimizer_of(
        model, name="muon", lr=3e-3, betas=(0.9, 0.95), eps=1e-9, weight_decay=0.2,
        muon={**given, "adjust_lr": adjust_lr},
    )  # fmt: skip
    named = dict(theirs.named_parameters())
    matrices = [p for name, p in named.items() if MATRIX.search(name)]
    decayed = [p for name, p in named.items() if re.search("embedding|vocabulary", name)]
    rest = [p for p in named.values() if not any(p is one for one in matrices + decayed)]
    pair = (
        torch.optim.Muon(matrices, **given, adjust_lr_fn=adjust_lr),
        torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.2}, {"params": rest, "weight_decay": 0.0}],
            lr=3e-3, betas=(0.9, 0.95), eps=1e-9,
        ),
    )  # fmt: skip
    before = [parameter.detach().clone() for parameter in model.parameters()]
    train(model, [ours], range(6))
    train(theirs, pair, range(6))
    for parameter, expected, start in zip(
        model.parameters(), theirs.parameters(), before, strict=True
    ):
        torch.testing.assert_close(parameter, expected, rtol=1e-9, atol=1e-8)
        assert not torch.equal(parameter, start) or parameter.grad is None


# Whose a parameter is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", sorted({*list_schemes()} - {"completep"}))  # which is refused
def test_the_matrices_of_branches_are_muons_and_nothing_else_is(scheme):
    model = made(scheme, activation="swiglu")
    found = names_by_part(model, optimizer_of(model, **MUON))
    everything = {name for name, _ in model.named_parameters()}
    assert found["muon"] == {name for name in everything if MATRIX.search(name)}
    assert found["adamw"] == everything - found["muon"]
    roles = {MATRIX.search(name).group(1) for name in found["muon"]}
    assert roles == {"q", "k", "v", "out", "fc1", "gate", "fc2"}


@pytest.mark.parametrize(
    ("scheme", "options", "shape"),
    [
        ("mhc", {}, {}),
        ("hyper_connections", {}, {}),
        ("mudd", {}, {}),
        ("laurel", {}, {}),
        ("deepnorm", {}, {"positions": "learned", "max_positions": 16}),
        ("deepnorm", {}, {"positions": "relative"}),
        ("scale_norm", {}, {"tie_embeddings": "none"}),
    ],
)
def test_other_parameters_of_two_axes_are_adamws(scheme, options, shape):
    model = made(scheme, options, **shape)
    adamw = names_by_part(model, optimizer_of(model, **MUON))["adamw"]
    maps = {
        name
        for name, parameter in model.named_parameters()
        if parameter.dim() == 2 and not MATRIX.search(name)
    }
    assert maps <= adamw
    assert len(maps) > 1
    assert {name for name in maps if "embedding" in name}


def test_frozen_parameters_are_left_out_and_one_without_a_gradient_stays():
    model = made()
    frozen, idle = model.encoder.layers[0], dict(model.named_parameters())
    frozen.requires_grad_(False)
    optimizer = optimizer_of(model, **MUON)
    listed = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert listed == {id(p) for p in model.parameters() if p.requires_grad}
    name = next(name for name, p in idle.items() if p.requires_grad and MATRIX.search(name))
    before = idle[name].detach().clone()
    for other, parameter in idle.items():
        parameter.grad = None if other == name else torch.ones_like(parameter)
    optimizer.step()
    assert torch.equal(idle[name], before)


# Rates --------------------------------------------------------------------------------------------------------------


def rates(optimizer):
    return {
        part: {round(g["lr"], 12) for g in optimizer.param_groups if g[PART] == part}
        for part in ("muon", "adamw")
    }


def test_both_rates_follow_one_curve():
    optimizer = optimizer_of(
        made(), name="muon", lr=1e-3, muon={"lr": 0.02, "adjust_lr": "original"}
    )
    assert rates(optimizer) == {"muon": {0.02}, "adamw": {1e-3}}
    set_learning_rate(optimizer, 5e-4)
    assert rates(optimizer) == {"muon": {0.01}, "adamw": {5e-4}}


def test_without_a_rate_of_their_own_the_matrices_have_adamws():
    assert rates(optimizer_of(made(), **MUON)) == {"muon": {1e-2}, "adamw": {1e-2}}


def test_multipliers_act_on_both():
    model = made()
    rows = [
        (name, p, PlainPolicy(lr=0.5, weight_decay=2.0, depth=policy.depth))
        for name, p, policy in parameter_policies(model)
    ]
    config = OptimizerConfig(name="muon", lr=1e-2, weight_decay=0.3)
    for group in build_optimizer(config, policies=rows).param_groups:
        assert group["lr"] == pytest.approx(5e-3)
        assert group["weight_decay"] == pytest.approx(0.2 if group[PART] == "muon" else 0.6)


def test_depth_lowers_every_rate_by_its_root_and_muons_decay_by_itself():
    model = made(encoder_layers=2, decoder_layers=18)
    optimizer = optimizer_of(model, name="muon", lr=1e-3, weight_decay=0.3, muon={"L_base": 8})
    assert rates(optimizer) == {
        part: {round(1e-3 * (8 / 18) ** 0.5, 12)} for part in ("muon", "adamw")
    }
    decays = {(g[PART], round(g["weight_decay"], 12)) for g in optimizer.param_groups}
    assert decays == {("muon", round(0.1 * 8 / 18, 12)), ("adamw", 0.3), ("adamw", 0.0)}
    set_learning_rate(optimizer, 5e-4)
    assert rates(optimizer)["muon"] == {round(5e-4 * (8 / 18) ** 0.5, 12)}


def test_its_family_is_adams():
    assert optimizer_family("muon") == "adam"


# One optimiser ------------------------------------------------------------------------------------------------------


def test_who_listens_for_steps_hears_one_of_one_optimiser():
    model = made()
    optimizer, heard = optimizer_of(model, **MUON), []
    handle = register_optimizer_step_post_hook(lambda found, *_: heard.append(found))
    try:
        train(model, [optimizer], range(3))
    finally:
        handle.remove()
    assert heard == [optimizer] * 3


def test_its_state_comes_back_through_tensors_and_numbers_bit_for_bit():
    model = made()
    optimizer = optimizer_of(model, **MUON)
    train(model, [optimizer], range(3))
    own, numbers = optimizer_state(optimizer, parameters=dict(model.named_parameters()))
    tensors = {name: tensor.clone() for name, tensor in own.items()}
    kinds = {name.partition(".")[0] for name in tensors}
    assert kinds == {"momentum_buffer", "step", "exp_avg", "exp_avg_sq"}
    again = copy.deepcopy(model)
    resumed, parameters = optimizer_of(again, **MUON), dict(again.named_parameters())
    load_optimizer_state(resumed, parameters=parameters, tensors=tensors, numbers=numbers)
    train(model, [optimizer], range(3, 6))
    train(again, [resumed], range(3, 6))
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_copy_goes_on_by_itself():
    model = made()
    optimizer = optimizer_of(model, **MUON)
    train(model, [optimizer], range(2))
    both = copy.deepcopy((model, optimizer))
    train(model, [optimizer], range(2, 4))
    train(both[0], [both[1]], range(2, 4))
    for one, other in zip(model.parameters(), both[0].parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("kind", "suffix"), [("momentum_buffer", "fc1.weight"), ("exp_avg_sq", "embedding.weight")]
)
def test_a_state_that_lacks_something_of_its_part_is_refused(kind, suffix):
    model = made()
    optimizer, parameters = optimizer_of(model, **MUON), dict(model.named_parameters())
    train(model, [optimizer], range(1))
    tensors, numbers = optimizer_state(optimizer, parameters=parameters)
    name = next(name for name in tensors if name.startswith(kind) and name.endswith(suffix))
    tensors[f"other.{name.partition('.')[2]}"] = tensors.pop(name)
    with pytest.raises(CheckpointError, match=f"lacks {kind}"):
        load_optimizer_state(optimizer, parameters=parameters, tensors=tensors, numbers=numbers)


def test_under_a_scaler_it_steps_as_without_and_not_at_all_where_a_gradient_is_infinite():
    plain, scaled = made(), made()
    train(plain, [optimizer_of(plain, **MUON)], range(3))
    optimizer, scaler = optimizer_of(scaled, **MUON), torch.amp.GradScaler("cpu", init_scale=4.0)
    train(scaled, [optimizer], range(3), scaler=scaler)
    for one, other in zip(plain.parameters(), scaled.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
    before = [parameter.detach().clone() for parameter in scaled.parameters()]
    for parameter in scaled.parameters():
        parameter.grad = torch.full_like(parameter, torch.inf)
    scaler.step(optimizer)
    assert all(map(torch.equal, scaled.parameters(), before))


# What is refused ----------------------------------------------------------------------------------------------------


def test_a_model_whose_matrices_are_not_known_is_refused():
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    with pytest.raises(ConfigError, match="which of the trained parameters they are is not known"):
        build_optimizer(OptimizerConfig(name="muon"), policies=plain_policies(model))


def test_what_is_no_matrix_cannot_be_said_to_be_one():
    convolution = nn.Conv1d(2, 3, 4)
    rows = [("weight", convolution.weight, PlainPolicy(depth=2))]
    with pytest.raises(ConfigError, match=r"weight has the shape \[3, 2, 4\].*depth 0"):
        build_optimizer(OptimizerConfig(name="muon"), policies=rows)


def test_weights_in_bfloat16_whose_mean_torch_would_write_over_are_refused():
    model = made(dtype=torch.bfloat16)
    assert optimizer_of(model, **MUON)
    with pytest.raises(ConfigError, match="nesterov = false loses the running mean"):
        optimizer_of(model, **MUON, muon={"nesterov": False})
    # the day that torch keeps it, the refusal can go
    weight = nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))
    weight.grad = torch.full_like(weight, 100.0)
    torchs = torch.optim.Muon([weight], nesterov=False)
    torchs.step()
    assert torchs.state[weight]["momentum_buffer"].norm() < 2  # 0.05 * 200 were right


def test_a_scheme_with_an_eps_of_its_own_is_refused():
    with pytest.raises(ConfigError, match=r"multiplies the eps of encoder\.layers.*q\.weight"):
        optimizer_of(made("completep"), **MUON)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "adam", "muon": {"lr": 1e-2}}, "muon has no effect with name = 'adam'"),
        ({"name": "muon", "muon": {"adjust_lr": "original"}}, "set lr beside it, such as 0.02"),
        ({"name": "muon", "momentum": 0.9}, "momentum has no effect with name = 'muon'"),
        ({"name": "muon", "muon": {"ns_steps": 0}}, "'optimizer.muon.ns_steps' is 0"),
        ({"name": "muon", "muon": {"ns_steps": 100}}, "'optimizer.muon.ns_steps' is 100"),
        (
            {"name": "muon", "muon": {"nestorov": True}},
            "unknown key 'optimizer.muon.nestorov'; did you mean 'nesterov'?",
        ),
    ],
)
def test_a_section_that_contradicts_itself_is_refused(given, message):
    with pytest.raises(ConfigError) as error:
        build(OptimizerConfig, given, where="optimizer")
    assert message in str(error.value)


def test_the_section_has_torchs_own_defaults_but_for_the_size_of_a_step():
    chosen = OptimizerConfig(name="muon").muon
    assert chosen == MuonConfig()
    torchs = torch.optim.Muon([nn.Parameter(torch.ones(2, 2))]).defaults
    for name in ("weight_decay", "momentum", "nesterov", "ns_steps"):
        assert getattr(chosen, name) == torchs[name]
    assert chosen.adjust_lr == "match_rms_adamw"


def test_a_resolved_section_can_be_read_again():
    section = OptimizerConfig(name="muon", muon={"weight_decay": 0.0, "momentum": 0.0})
    assert build(OptimizerConfig, section.model_dump(mode="json")) == section
