"""What value residual and value embeddings share: any scheme below them, and what none of its parts may notice."""

import pytest
import torch
from cases import CASES
from hypotheses import check_cached_hypotheses

import deepnet
from deepnet.blocks.demands import demands
from deepnet.errors import AdaptError, ConfigError, ExportError
from deepnet.schemes.base import ResidualScheme, SitePlan, ValueStream
from deepnet.schemes.catalogue import list_schemes, load_scheme, scheme_class
from deepnet.schemes.pre_ln import Scheme as PreLN
from deepnet.testing.scheme_models import case_architectures, example_batch, example_loss
from deepnet.theory.live_model import attention_magnitudes
from deepnet.training.engine.compile import compiled
from deepnet.training.engine.recompute import recomputed
from deepnet.transformer.models import Transformer, TransformerConfig

NAMES = ("value_residual", "value_embeddings")
BASES = [
    name
    for name in list_schemes()
    if scheme_class(name).prepare is ResidualScheme.prepare
    and scheme_class(name).after_update is ResidualScheme.after_update
]
NEUTRAL = {
    "value_residual": ({"mix": "learned"}, ".m"),
    "value_embeddings": ({}, "value_table.weight"),
}
"""Options, and the name of what makes a model of them its base where it is 0."""


def model_of(scheme, options=None, *, architecture="encoder_decoder", **shape):
    """Return a float64 model, two or three layers to a stack, whose every parameter is off its start."""
    layers = {
        "encoder_layers": 0 if architecture == "decoder_only" else 2,
        "decoder_layers": 0 if architecture == "encoder_only" else 3,
    }
    sizes = {"d_model": 16, "ffn_dim": 32, "num_heads": 4, "vocab_size": 30, "dropout": 0.0}
    sizes["tie_embeddings"] = (
        "decoder"  # t_fixup draws the embeddings of stacks of two depths apart
    )
    config = TransformerConfig(**{"architecture": architecture, **layers, **sizes, **shape})
    torch.manual_seed(1)
    model = Transformer(config, load_scheme(scheme, options)).double()
    model.advance(1000)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model.eval()


def sentences(length=6):
    """Return two sources, the second padded, and their keep mask."""
    source = torch.randint(2, 29, (2, length))
    keep = torch.ones(2, length, dtype=torch.bool)
    keep[1, -2:] = False
    return source.masked_fill(~keep, 29), keep


def shape_for(base):
    """Return what a base needs of a model, as its case says, and an architecture that it is defined for."""
    case = next(case for case in CASES if case.name == base)
    return {"architecture": case_architectures(case)[0], **case.shape}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", NAMES)
def test_where_it_adds_nothing_it_is_its_base_bit_for_bit(name, base):
    if base == name:
        return
    options, silenced = NEUTRAL[name]
    model = model_of(name, {**options, "base": base}, **shape_for(base))
    with torch.no_grad():
        for own, parameter in model.named_parameters():
            if own.endswith(silenced):
                parameter.zero_()
    plain = model_of(base, **shape_for(base))
    missing, unexpected = plain.load_state_dict(model.state_dict(), strict=False)
    assert not missing
    assert all(".extra.value_" in one for one in unexpected)
    assert any(one.endswith(silenced) for one in unexpected)
    batch = example_batch(model.config.architecture)
    assert torch.equal(model(*batch), plain(*batch))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", NAMES)
def test_it_is_not_its_base_and_decodes_with_a_cache_as_without(name, base):
    if base == name:
        return
    options = NEUTRAL[name][0]
    model = model_of(name, {**options, "base": base}, **shape_for(base))
    plain = model_of(base, **shape_for(base))
    plain.load_state_dict(model.state_dict(), strict=False)
    batch = example_batch(model.config.architecture)
    assert (model(*batch) - plain(*batch)).abs().max() > 1e-3
    if model.decoder is not None:
        check_cached_hypotheses(model, *sentences())


@pytest.mark.parametrize(
    "shape", [{}, {"num_kv_heads": 2, "positions": "rotary"}, {"num_kv_heads": 1}]
)
@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("value_residual", {"mix": mix}) for mix in ("half", "learned", "first")),
        ("value_residual", {"base": "deepnorm"}),
        ("value_residual", {"base": "value_embeddings"}),
        ("value_residual", {"base": "hybrid_norm"}),
        ("value_embeddings", {}),
        ("value_embeddings", {"base": "deepnorm"}),
        ("value_embeddings", {"base": "x0"}),
    ],
)
def test_a_cache_holds_the_values_that_were_read(name, options, architecture, shape):
    if options.get("base") == "hybrid_norm" and architecture != "decoder_only":
        return
    check_cached_hypotheses(
        model_of(name, options, architecture=architecture, **shape), *sentences()
    )


@pytest.mark.parametrize("name", NAMES)
def test_fewer_heads_of_values_are_full_ones_that_are_repeated(name):
    options = NEUTRAL[name][0]
    narrow, full = model_of(name, options, num_kv_heads=2), model_of(name, options)
    state = narrow.state_dict()
    for key, value in state.items():
        if ".branch.k." in key or ".branch.v." in key:
            state[key] = value.unflatten(0, (2, 4)).repeat_interleave(2, 0).flatten(0, 1)
        elif key.endswith("value_table.weight"):
            state[key] = value.unflatten(1, (2, 4)).repeat_interleave(2, 1).flatten(1)
        elif key.endswith("value_table.gate"):
            state[key] = value.repeat_interleave(2, 0)
    full.load_state_dict(state)
    batch = example_batch("encoder_decoder")
    torch.testing.assert_close(full(*batch), narrow(*batch), rtol=0, atol=1e-12)


CHOICES = [
    *(("value_residual", {"mix": mix}) for mix in ("half", "learned", "first")),
    ("value_embeddings", {}),
]


@pytest.mark.parametrize(("name", "options"), CHOICES)
def test_under_autocast_it_is_near_float32(name, options):
    model, batch = model_of(name, options, num_kv_heads=2).float(), example_batch("encoder_decoder")
    exact = model(*batch)
    with torch.autocast("cpu", torch.bfloat16):
        low = model(*batch)
    assert low.float().sub(exact).norm() < 0.05 * exact.norm()
    low.float().logsumexp(-1).mean().backward()
    for key, parameter in model.named_parameters():
        if ".extra.value_" in key:
            assert parameter.grad is not None
            assert torch.isfinite(parameter.grad).all()
            assert parameter.grad.abs().max() > 0


# torch asks every tensor for its gradient, and filters the warning of those that have none by a filter of its own
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize(("name", "options"), CHOICES)
@pytest.mark.parametrize("base", ["pre_ln", "deepnorm"])
def test_compiled_and_recomputed_blocks_give_the_same_gradients(name, options, base):
    model, found = model_of(name, {**options, "base": base}).train(), []
    blocks = [layer for stack in model.stacks() for layer in stack.layers]
    for around in (
        lambda: recomputed([]),
        lambda: recomputed(blocks),
        lambda: compiled(blocks, backend="eager"),
    ):
        model.zero_grad()
        with around():
            example_loss(model, example_batch("encoder_decoder")).backward()
        found.append({key: parameter.grad.clone() for key, parameter in model.named_parameters()})
    for key, gradient in found[0].items():
        assert torch.equal(found[1][key], gradient), key
        torch.testing.assert_close(found[2][key], gradient, rtol=1e-10, atol=1e-12)


# What is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("base", "words"),
    [
        ("admin", r"base 'admin' overrides prepare\(\), which is not carried over"),
        ("ngpt", r"base 'ngpt' overrides prepare\(\), which is not carried over"),
        ("os:Class", "base is 'os:Class'; expected a scheme of the catalogue"),
        ("deepnrm", "unknown scheme 'deepnrm'"),
    ],
)
def test_a_base_that_it_cannot_have_is_refused(name, base, words):
    with pytest.raises(ConfigError, match=words):
        load_scheme(name, {"base": base})


@pytest.mark.parametrize("name", NAMES)
def test_it_is_no_base_of_itself_nor_of_an_architecture_that_its_base_lacks(name):
    with pytest.raises(ConfigError, match=f"base '{name}' is the scheme itself"):
        load_scheme(name, {"base": name})
    with pytest.raises(ConfigError, match="base 'hybrid_norm' is defined for decoder_only"):
        model_of(name, {"base": "hybrid_norm"})


def test_no_code_of_somebody_else_runs_for_a_base(tmp_path, monkeypatch):
    (tmp_path / "not_ours.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError):
        load_scheme("value_residual", {"base": "not_ours:Scheme"})


@pytest.mark.parametrize(("name", "options"), CHOICES)
def test_it_is_not_folded_not_adopted_and_not_measured_by_a_lemma_about_projections(name, options):
    model = model_of(name, options)
    with pytest.raises(ExportError, match="its attention reads other values than it projects"):
        deepnet.fold(model)
    torch_model = torch.nn.Transformer(16, 2, 1, 1, 32, batch_first=True)
    with pytest.raises(AdaptError, match="values that its stream makes"):
        deepnet.apply_scheme(torch_model, load_scheme(name, options))
    with pytest.raises(ConfigError, match=r"Lemma 4\.1"):
        attention_magnitudes(model, lambda: model(*example_batch("encoder_decoder")))


def test_sites_for_layers_of_ones_own_say_what_they_need_and_do_not_leave_it_out():
    scheme = load_scheme("value_residual")
    config = model_of("pre_ln", architecture="encoder_only").config
    sites = deepnet.residual_sites(scheme, config, by_hand=True)
    assert "values that its stream makes (plan.stream.values) (self)" in demands(scheme, sites.plan)
    with pytest.raises(ConfigError, match="the branch 'self', which `through` cannot give"):
        sites.through(sites.open(torch.randn(1, 2, 16)), sites.layers[0]["self"], lambda x: x)


# A scheme of one's own ----------------------------------------------------------------------------------------------


class _Doubled(ValueStream):
    def values(self, state, site, own, *, source, ids):
        return 2.0 * own, state


class _OfOwn(PreLN):
    """Doubled values in self-attention, or wherever a test says."""

    kinds, with_stream = ("self",), True

    def site(self, context, site) -> SitePlan:
        plan = super().site(context, site)
        values = "mixed" if site.kind in self.kinds else "own"
        return SitePlan(**{**vars(plan), "values": values})

    def stream(self, context):
        return _Doubled() if self.with_stream else super().stream(context)


def test_a_scheme_of_ones_own_makes_values(make_model, sentences):
    model, plain = make_model(_OfOwn()), make_model("pre_ln")
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if ".self.branch.v." in name:
                parameter.mul_(2.0)
    torch.testing.assert_close(model(*sentences), plain(*sentences), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("changes", "words"), [
    ({"kinds": ("ffn",)}, "values 'mixed' are planned for the branch 'ffn' of layer 1"),
    ({"with_stream": False}, "in a stream of kind Stream; expected self or cross, and a ValueStream"),
])  # fmt: skip
def test_values_that_nobody_makes_are_refused(make_model, changes, words):
    scheme = type("Changed", (_OfOwn,), changes)()
    with pytest.raises(ConfigError, match=words):
        make_model(scheme)
