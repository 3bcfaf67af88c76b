"""A folded model computes what the model did, is plain, and is refused where no plain model can."""

from collections import Counter
from dataclasses import replace

import cases
import pytest
import torch

import deepnet
from deepnet.bundle import load_bundle, save_bundle
from deepnet.errors import ConfigError, ExportError
from deepnet.folding import no_norm
from deepnet.schemes import post_ln, pre_ln
from deepnet.schemes.base import (
    Constant,
    Ends,
    Learned,
    Norm,
    ResidualScheme,
    SitePlan,
    embedding_init,
    glorot,
)
from deepnet.schemes.catalogue import list_schemes, load_scheme, scheme_class
from deepnet.transformer.models import Transformer, TransformerConfig

ROWS = [
    pytest.param(case, architecture, id=f"{case.name}{dict(case.options)}-{architecture}")
    for case in cases.CASES
    for architecture in scheme_class(case.name).architectures
    if architecture in case.architectures
]
PLAIN = {
    "post_ln": post_ln.Scheme(),
    "pre_ln": pre_ln.Scheme(),
    "no_norm": no_norm.Scheme(),
}
# options under which a scheme folds to something else than it says for itself
ELSEWHERE = {
    ("ds_init", "merged", True): None,
    ("prores", "base", "post_ln"): "post_ln",
    ("gpas", "base", "deepnorm"): "post_ln",
    ("deepscale_lm", "placement", "post"): "post_ln",
}


def shape(architecture="encoder_decoder", **changes):
    sizes = {"d_model": 16, "ffn_dim": 24, "num_heads": 2, "vocab_size": 30, "dropout": 0.1}
    layers = {
        "encoder_layers": 0 if architecture == "decoder_only" else 2,
        "decoder_layers": 0 if architecture == "encoder_only" else 2,
    }
    return TransformerConfig(
        **{"architecture": architecture, "max_positions": 12, **layers, **sizes, **changes}
    )


def trained(scheme, config, step=1000):
    """A float64 model in evaluation mode, every parameter off its start, after some of the scheme's updates."""
    torch.manual_seed(1)
    model = Transformer(config, scheme).double().eval()
    model.advance(step)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


def logits(model):
    generator = torch.Generator().manual_seed(2)
    source = torch.randint(2, 29, (3, 5), generator=generator)
    target = torch.randint(2, 29, (3, 4), generator=generator)
    keep = torch.ones(3, 5, dtype=torch.bool)
    keep[1, 3:] = False
    with torch.no_grad():
        if model.encoder is None:
            return model(source)
        return model(source, keep, target if model.decoder is not None else None)


def same(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("case", "architecture"), ROWS)
def test_a_model_folds_to_what_its_scheme_says_and_computes_the_same(case, architecture):
    scheme, claimed = load_scheme(case.name, case.options), scheme_class(case.name).folds_to
    for option in case.options.items():
        claimed = ELSEWHERE.get((case.name, *option), claimed)
    model = trained(scheme, shape(architecture, **case.shape))
    if claimed is None:
        with pytest.raises(ExportError, match="this model cannot be folded: it"):
            deepnet.fold(model)
        return
    plain = deepnet.fold(model)
    assert plain.scheme == PLAIN[claimed]
    assert not plain.training
    same(logits(plain), logits(model))
    # nothing but what a plain model of that shape has
    fresh = Transformer(plain.config, PLAIN[claimed])
    assert plain.state_dict().keys() == fresh.state_dict().keys()


def test_every_scheme_of_the_catalogue_was_tried():
    assert {row.values[0].name for row in ROWS} == set(list_schemes())


@pytest.mark.parametrize("tying", ["all", "decoder", "none"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
@pytest.mark.parametrize("name", ["deepnorm", "admin", "completep", "r_fixup"])
def test_every_tying_and_every_kind_of_position_folds(name, positions, tying):
    for architecture in ("encoder_decoder", "encoder_only"):
        layers = {"encoder_layers": 3} if name == "deepnorm" else {}
        config = shape(architecture, positions=positions, tie_embeddings=tying, **layers)
        model = trained(load_scheme(name), config)
        same(logits(deepnet.fold(model)), logits(model))


@pytest.mark.parametrize("changes", [{"norm": "rms_norm"}, {"activation": "swiglu"}])
@pytest.mark.parametrize("name", ["deepnorm", "layernorm_scaling", "r_fixup", "completep"])
def test_other_norms_and_gated_branches_fold(name, changes):
    model = trained(load_scheme(name), shape(**changes))
    same(logits(deepnet.fold(model)), logits(model))


@pytest.mark.parametrize("options", [{}, {"balance": "skip"}, {"placement": "pre"}])
def test_the_essays_forms_fold(options):
    model = trained(load_scheme("deepnorm", {"convention": "essay"} | options), shape())
    plain = deepnet.fold(model)
    assert plain.scheme == PLAIN["pre_ln" if "placement" in options else "post_ln"]
    same(logits(plain), logits(model))


@pytest.mark.parametrize("step", [0, 1, 3999, 4000, 10**6])
def test_a_scheduled_scale_is_folded_as_it_is(step):
    model = trained(load_scheme("branchnorm"), shape(), step)
    plain = deepnet.fold(model)
    same(logits(plain), logits(model))
    assert int(plain.scheme_step) == step
    fc2, folded_fc2 = (m.decoder.layers[1].sublayers["ffn"].branch.fc2 for m in (model, plain))
    same(folded_fc2.weight, fc2.weight * min(1.0, step / 4000), 1e-15)


def test_what_can_stay_one_matrix_stays_one():
    # alpha differs between the stacks, so that only the output keeps its embedding
    config = deepnet.fold(trained(load_scheme("deepnorm"), shape())).config
    assert config.tie_embeddings == "decoder"
    for name in ("branchnorm", "completep", "rezero"):
        assert deepnet.fold(trained(load_scheme(name), shape())).config.tie_embeddings == "all"
    # the encoder's own scale has no norm to go into
    alone = trained(load_scheme("r_fixup"), shape("encoder_only"))
    assert deepnet.fold(alone).config.tie_embeddings == "none"


def test_scaled_sinusoids_become_a_table_of_as_many_rows_as_wanted():
    model = trained(load_scheme("deepnorm"), shape())
    assert deepnet.fold(model).max_positions == 12
    plain = deepnet.fold(model, max_positions=600)
    assert plain.max_positions == 600
    longer = torch.randint(2, 29, (1, 600))
    same(plain.encode(longer), model.encode(longer))
    with pytest.raises(ConfigError, match="max_positions 600 has no effect"):
        deepnet.fold(plain, max_positions=600)
    with pytest.raises(ConfigError, match="max_positions 600 has no effect"):
        deepnet.fold(trained(load_scheme("branchnorm"), shape()), max_positions=600)


def test_dividing_the_branches_alone_forgets_eps():
    """LN_eps(a x + f) is LN_(eps / a^2)(x + f / a): with small embeddings, keeping eps there shows; `fold` keeps it."""
    torch.manual_seed(1)
    config = shape("encoder_only", positions="rotary", tie_embeddings="none")
    model = Transformer(config, load_scheme("deepnorm")).double().eval()
    with torch.no_grad():
        model.target_embedding.weight.mul_(1e-3)
        for norm in (
            module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)
        ):
            norm.bias.normal_()  # or the next norm would undo what this one's eps did
    alpha = 4**0.25
    naive = Transformer(model.config, post_ln.Scheme()).double().eval()
    naive.load_state_dict(model.state_dict())
    with torch.no_grad():
        for site in naive.sites():
            last = site.branch.fc2 if site.kind == "ffn" else site.branch.out
            last.weight.div_(alpha)
            last.bias.div_(alpha)
    expected = logits(model)
    assert (logits(naive) - expected).abs().max() > 1e-4
    for site in naive.sites():
        site.residual.post.eps /= alpha**2
    same(logits(naive), expected)
    same(logits(deepnet.fold(model)), expected)


def test_folding_touches_neither_the_model_nor_the_generator():
    model = trained(load_scheme("admin"), shape()).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    plain = deepnet.fold(model)
    assert torch.rand(1) == expected
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    ours = {p.data_ptr() for p in plain.parameters()}
    assert not ours & {p.data_ptr() for p in model.parameters()}


@pytest.mark.parametrize(
    ("dtype", "result", "tolerance"),
    [(torch.float32, torch.float32, 1e-5), (torch.bfloat16, torch.float32, 0.3)],
)
def test_a_model_comes_back_in_its_type_float32_at_least(dtype, result, tolerance):
    model = trained(load_scheme("deepnorm"), shape(positions="rotary")).to(dtype)
    plain = deepnet.fold(model)
    assert Counter(p.dtype for p in plain.parameters()).keys() == {result}
    same(logits(plain), logits(model.to(result)), 1e-5)
    same(logits(plain), logits(model.to(dtype)).to(result), tolerance)


def test_a_folded_model_decodes_step_by_step_and_survives_a_bundle(tmp_path):
    for name in ("deepnorm", "rezero"):
        plain = deepnet.fold(trained(load_scheme(name), shape()).float())
        save_bundle(tmp_path / name, plain)
        loaded = load_bundle(tmp_path / name).model.eval()
        assert loaded.scheme == plain.scheme
        assert torch.equal(logits(loaded), logits(plain))


class Own(ResidualScheme):
    """A user's own ordinary site: everything a plain model can take, at once."""

    def site(self, context, site):
        return SitePlan(
            branch=site.kind,
            post=context.norm(multiplier=0.7),
            skip=Learned(init=1.3, shape="vector"),
            branch_scale=Learned(init=0.4, shape="vector", scope="layer"),
            attention_multiplier=0.1,
            shifts={"input": 0.2} | ({"activation": 0.1} if site.kind == "ffn" else {}),
            bias=False,
            init=glorot(),
        )

    def ends(self, context):
        return Ends(
            embedding_multiplier=Learned(init=2.0, shape="vector"),
            unit_rows=True,
            exit_scale=Constant(0.9),
            logit_scale=Constant(3.0),
            init=super().ends(context).init,
        )


def test_a_scheme_of_ones_own_folds_by_its_plan():
    for architecture in ("encoder_decoder", "encoder_only", "decoder_only"):
        model = trained(Own(), shape(architecture))
        plain = deepnet.fold(model)
        assert plain.scheme == post_ln.Scheme()
        same(logits(plain), logits(model))


class Narrow(ResidualScheme):
    """Post-LN whose norms have another eps than the model's."""

    def site(self, context, site):
        norm = Norm(lambda width: torch.nn.LayerNorm(width, eps=1e-3))
        return SitePlan(branch=site.kind, post=norm, init=glorot())


class Doubled(ResidualScheme):
    """Pre-LN with a scaled skip."""

    def site(self, context, site):
        return SitePlan(branch=site.kind, pre=context.norm(), skip=Constant(2.0), init=glorot())

    def ends(self, context):
        return Ends(final=context.norm(), init=super().ends(context).init)


@pytest.mark.parametrize(
    ("scheme", "reason"),
    [
        (Narrow(), "not the model's own"),
        (Doubled(), "its skips are scaled with no norm behind them"),
        (load_scheme("ds_init", {"merged": True}), "merged attention"),
        (load_scheme("dlcl"), "its stream is more than one tensor"),
        (load_scheme("sub_ln"), "norms inside its branches"),
        (load_scheme("dyt"), "DynamicTanh"),
    ],
)
def test_a_refusal_says_why(scheme, reason):
    with pytest.raises(ExportError, match=reason):
        deepnet.fold(trained(scheme, shape()))


def test_a_skip_of_exactly_zero_is_refused():
    model = trained(load_scheme("admin"), shape())
    with torch.no_grad():
        model.decoder.layers[0].sublayers["cross"].residual.skip.factor[3] = 0.0
    with pytest.raises(ExportError, match="exactly 0"):
        deepnet.fold(model)


LOOPED = [
    ("deepnorm", {}), ("deepnorm", {"convention": "essay"}), ("branchnorm", {}), ("rezero", {}),
    ("admin", {"form": "log"}), ("completep", {}), ("t_fixup", {}), ("layerscale", {}),
]  # fmt: skip


@pytest.mark.parametrize("tying", ["decoder", "none"])
@pytest.mark.parametrize("architecture", ["encoder_decoder", "encoder_only", "decoder_only"])
@pytest.mark.parametrize(("name", "options"), LOOPED)
def test_looped_layers_fold_where_layers_of_their_own_do(name, options, architecture, tying):
    """A skip's scale that the last layer writes for the first is taken off by what reads the stack."""
    config = shape(architecture, loops=3, tie_embeddings=tying)
    model = trained(load_scheme(name, options), config)
    plain = deepnet.fold(model)
    assert plain.config.loops == 3
    same(logits(plain), logits(model))


def test_trained_skips_of_looped_layers_fold_by_channel():
    class Skips(post_ln.Scheme):
        def site(self, context, site):
            return replace(super().site(context, site), skip=Learned(init=1.5, shape="vector"))

    model = trained(Skips(), shape(loops=2))
    same(logits(deepnet.fold(model)), logits(model))


def test_a_shift_behind_looped_layers_has_no_plain_form():
    class Shifted(no_norm.Scheme):
        def ends(self, context):
            return Ends(exit_shift=0.5, init=embedding_init(context))

    same(logits(deepnet.fold(trained(Shifted(), shape()))), logits(trained(Shifted(), shape())))
    with pytest.raises(ExportError, match="which its first one reads as well"):
        deepnet.fold(trained(Shifted(), shape(loops=2)))
