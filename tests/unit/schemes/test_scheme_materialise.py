"""Every scheme in each architecture: built on meta, converted to a shorter type and back, loaded into empty memory."""

from dataclasses import dataclass

import cases
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from deepnet.blocks.named import BranchNorm
from deepnet.blocks.sites import residual_sites
from deepnet.bundle import load_model_tensors, model_tensors, save_bundle
from deepnet.errors import ConfigError, SchemeError
from deepnet.schemes import branchnorm, keel, layernorm_scaling
from deepnet.schemes.base import SitePlan
from deepnet.testing.scheme_models import case_architectures, case_model, example_batch
from deepnet.transformer.models import Transformer, TransformerConfig
from deepnet.transformer.positions.sinusoidal import sinusoidal_table

ROWS = [
    pytest.param(case, architecture, id=f"{case.name}{dict(case.options)} {architecture}")
    for case in cases.CASES
    for architecture in case_architectures(case)
]
SHAPES = (  # beside the tied, sinusoidal, ungated model of the rows
    {"tie_embeddings": "none", "positions": "learned", "max_positions": 8, "activation": "swiglu"},
    {"tie_embeddings": "none", "positions": "rotary", "norm": "rms_norm"},
)


def _numbers(model):
    """Return every parameter and buffer, those that are not saved included."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _assert_same(found, expected):
    found, expected = _numbers(found), _numbers(expected)
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


@torch.no_grad()
def _spoil(model, *, but=()):
    """Overwrite what a model holds, as memory that is handed out again may be."""
    for name, tensor in _numbers(model).items():
        if name not in but:
            tensor.fill_(float("nan") if tensor.is_floating_point() else 77)


def _on_meta(build):
    with torch.device("meta"):
        model = build()
    assert all(tensor.is_meta for tensor in _numbers(model).values())
    return model.to_empty(device="cpu")


def _config(**shape):
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 16, "ffn_dim": 32, "num_heads": 2}
    return TransformerConfig(**{**sizes, "vocab_size": 30, "dropout": 0.0, **shape})


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape["positions"])
@pytest.mark.parametrize(("case", "architecture"), ROWS)
def test_made_again_it_is_what_it_would_have_been(case, architecture, shape):
    def build():
        return case_model(case, architecture, **shape)

    torch.manual_seed(3)
    direct = build()
    made = _on_meta(build)
    _spoil(made)
    torch.manual_seed(3)
    made.reset_parameters()
    _assert_same(made, direct)
    assert torch.equal(torch.get_rng_state(), _state_after(build))


def _state_after(build):
    torch.manual_seed(3)
    build()
    return torch.get_rng_state()


@pytest.mark.parametrize(("case", "architecture"), ROWS)
def test_a_trip_through_a_short_type_loses_nothing_that_is_fixed(case, architecture):
    model = case_model(case, architecture)
    model.scheme.advance(model, 1234)
    expected = {name: b.clone() for name, b in model.double().named_buffers()}
    for short in (torch.bfloat16, torch.float16):
        model.to(short).double()
        for name, buffer in model.named_buffers():
            assert torch.equal(buffer, expected[name]), name


@pytest.mark.parametrize(("case", "architecture"), ROWS)
def test_loaded_into_empty_memory_it_is_what_was_saved(case, architecture):
    saved, batch = case_model(case, architecture), example_batch(architecture)
    saved.scheme.advance(saved, 1234)
    loads = (
        (nn.Module.load_state_dict, saved.state_dict()),
        (load_model_tensors, model_tensors(saved)),
    )
    for load, tensors in loads:
        empty = _on_meta(lambda: case_model(case, architecture))
        _spoil(empty, but=dict(empty.named_buffers()).keys() - empty.state_dict().keys())
        load(empty, tensors)
        _assert_same(empty, saved)
        assert torch.equal(empty(*batch), saved(*batch))


def test_fixed_numbers_are_those_of_their_source():
    model = Transformer(_config(), layernorm_scaling.Scheme()).bfloat16().double()
    norms = [one.residual.pre for one in model.encoder.layers[1].sublayers.values()]
    assert [norm.factor.item() for norm in norms] == [2**-0.5, 2**-0.5]  # 1/sqrt(l), l = 2
    grown = Transformer(_config(), keel.Scheme()).half().double().encoder.entry.positions
    assert torch.equal(grown(600, 3), sinusoidal_table(603, 16)[600:].double())


# Memory without weights ---------------------------------------------------------------------------------------------


def _batch():
    return torch.randint(2, 29, (2, 3)), None, torch.randint(2, 29, (2, 3))


def _emptied():
    return Transformer(_config(), branchnorm.Scheme()).to_empty(device="cpu")


def _emptied_within():
    with torch.device("meta"):
        around = nn.Sequential(Transformer(_config(), branchnorm.Scheme()))
    return around.to_empty(device="cpu")[0]


@pytest.mark.parametrize("make", [_emptied, _emptied_within])
@pytest.mark.parametrize(
    "use",
    [
        lambda model, path: model(*_batch()),
        lambda model, path: model.encode(_batch()[0]),
        lambda model, path: model.step(_batch()[0], 0, model.begin(torch.zeros(2, 3, 16))),
        lambda model, path: save_bundle(path / "bundle", model),
    ],
)
def test_a_model_without_weights_is_not_used(make, use, tmp_path):
    model = make()
    with pytest.raises(ConfigError, match="reset_parameters"):
        use(model, tmp_path)
    model.reset_parameters()
    use(model, tmp_path)


def test_a_part_of_a_state_leaves_it_without_weights():
    saved, model = Transformer(_config(), branchnorm.Scheme()), _emptied()
    part = {name: x for name, x in saved.state_dict().items() if not name.startswith("decoder")}
    model.load_state_dict(part, strict=False)
    with pytest.raises(ConfigError, match="load_state_dict"):
        model(*_batch())
    model.load_state_dict(saved.state_dict())
    model(*_batch())


def test_a_part_of_a_state_that_is_loaded_around_it_leaves_it_without_weights():
    around = nn.ModuleDict({"model": _emptied_within()})
    saved = nn.ModuleDict({"model": Transformer(_config(), branchnorm.Scheme())}).state_dict()
    around.load_state_dict({k: x for k, x in saved.items() if "decoder" not in k}, strict=False)
    assert around["model"].is_empty
    around.load_state_dict(saved)
    around["model"](*_batch())


def test_moving_and_converting_is_no_emptying():
    model = Transformer(_config(), branchnorm.Scheme())
    model.to("cpu").double().half().float()
    model(*_batch())
    with torch.device("meta"):
        shapes = Transformer(_config(), branchnorm.Scheme()).bfloat16()
        assert shapes(*_batch()).shape == (2, 3, 29)


# Parts of a model ---------------------------------------------------------------------------------------------------


def test_the_sites_of_a_hand_written_model_are_made_again():
    direct = residual_sites("r_fixup", _config(), stack="decoder", by_hand=True)
    made = _on_meta(lambda: residual_sites("r_fixup", _config(), stack="decoder", by_hand=True))
    with pytest.raises(ConfigError, match="reset_parameters"):
        made.open(torch.zeros(1, 1, 16))
    _spoil(made)
    made.reset_parameters()
    _assert_same(made, direct)


def test_a_site_of_its_own_starts_again():
    site = BranchNorm(8, T=10)
    site.advance(5)
    site.to_empty(device="cpu")
    assert site.branch.factor.item() == 0.5
    site.reset_parameters()
    assert (site.branch.factor.item(), site.scheme_step.item()) == (0.0, 0)


class _Forgetful(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(3))


class _Drawn(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.noise = nn.Parameter(torch.empty(5))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.normal_(self.noise)


@dataclass(frozen=True, kw_only=True)
class _WithExtra(keel.Scheme):
    make: type = _Drawn

    def site(self, context, site) -> SitePlan:
        plan = super().site(context, site)
        return SitePlan(**{**vars(plan), "extra": {"own": self.make}})


def test_modules_of_a_users_scheme_are_made_again():
    def build():
        return Transformer(_config(), _WithExtra())

    torch.manual_seed(3)
    direct, made = build(), _on_meta(build)
    _spoil(made)
    torch.manual_seed(3)
    made.reset_parameters()
    _assert_same(made, direct)


class _Unsaved(_Drawn):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.ones(2), persistent=False)


def test_what_no_state_brings_leaves_it_without_weights():
    saved = Transformer(_config(), _WithExtra(make=_Unsaved)).state_dict()
    model = _on_meta(lambda: Transformer(_config(), _WithExtra(make=_Unsaved)))
    model.load_state_dict(saved)
    with pytest.raises(ConfigError, match="not saved"):
        model(*_batch())
    model.reset_parameters()
    model.load_state_dict(saved)
    model(*_batch())


def test_a_module_that_cannot_be_made_again_is_named():
    with pytest.raises(SchemeError, match=r"residual\.extra\.own .*_Forgetful"):
        Transformer(_config(), _WithExtra(make=_Forgetful)).reset_parameters()


# Who reads a weight -------------------------------------------------------------------------------------------------


class _Reads(TorchFunctionMode):
    """Notes every parameter that an operation is given while no block that holds it runs."""

    def __init__(self, model):
        super().__init__()
        self.units = {}
        self.running, self.outside = [], set()
        parts = [model.source_embedding, model.target_embedding, model.vocabulary.rows]
        for stack in model.stacks():
            parts += [stack.entry, *stack.layers, stack.ends]
        parts += [] if model.logit_scale is None else [model.logit_scale]
        for part in parts:
            self.units.setdefault(part, set()).update(map(id, part.parameters()))
        self.names = {id(p): name for name, p in model.named_parameters()}
        for unit in self.units:
            unit.register_forward_pre_hook(lambda module, args: self.running.append(module))
            unit.register_forward_hook(lambda module, args, out: self.running.pop() and None)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        there = set().union(*(self.units[unit] for unit in self.running))
        given = {id(value) for value in tree_leaves((args, kwargs or {}))} & self.names.keys()
        self.outside |= {self.names[key] for key in given - there}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("case", "architecture"), ROWS)
def test_every_weight_is_read_inside_the_forward_of_its_block(case, architecture):
    model = case_model(case, architecture)
    reads = _Reads(model)
    assert set().union(*reads.units.values()) == {id(p) for p in model.parameters()}
    with reads:
        model(*example_batch(architecture))
    assert reads.outside == set()
