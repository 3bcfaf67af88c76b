"""DeepScaleLM: the authors' numbers, variance 1 at the start, DeepNorm's twin, and why it has encoders only."""

import math

import pytest
import torch

import deepnet
from deepnet.errors import AdaptError, ConfigError
from deepnet.schemes.catalogue import load_scheme
from deepnet.schemes.coefficients import coefficients
from deepnet.transformer.inputs import Inputs
from deepnet.transformer.models import Transformer, TransformerConfig
from deepnet.transformer.plans import stack_context

ENCODER = {"architecture": "encoder_only", "decoder_layers": 0}


def _plan(options, **shape):
    config = TransformerConfig(**{**ENCODER, "vocab_size": 30, **shape})
    context = stack_context(config, "encoder", optimizer_family="adam")
    return load_scheme("deepscale_lm", options).stack(context)


def test_the_numbers_of_192_layers():
    """d = 1024, p = 0.1, beta^2 = 0.005 and three tables, as the authors' code has them."""
    shape = {"encoder_layers": 192, "d_model": 1024, "ffn_dim": 4096, "num_heads": 16}
    plan = _plan({"tables": 3, "beta_squared": 0.005}, **shape, dropout=0.1)
    first, *_, last = (site_plan for _, site_plan in plan.sites)
    assert first.init["v"].value == first.init["out"].value == pytest.approx(0.0456, abs=5e-5)
    assert last.init["v"].value == pytest.approx(0.0338, abs=5e-5)
    assert len({p.init["fc1"].value for _, p in plan.sites}) == 1
    assert first.init["fc2"].value == first.init["fc1"].value == pytest.approx(0.0256, abs=5e-5)
    assert first.init["q"].value == 1024**-0.5
    assert plan.ends.init["embedding"].value == pytest.approx(0.548, abs=5e-4)
    assert plan.ends.logit_scale.value == pytest.approx((0.3 * 1024) ** -0.5, rel=1e-12)


def test_the_default_share_is_the_codes_at_192_layers():
    """2 / R = 0.0052 for its 0.005; lam^2 + beta^2 = 1."""
    plan = _plan({}, encoder_layers=192)
    skip, branch = plan.sites[0][1].skip.value, plan.sites[0][1].branch_scale.value
    assert branch**2 == pytest.approx(0.0052, abs=5e-5)
    assert skip**2 + branch**2 == pytest.approx(1.0, rel=1e-14)
    alone = _plan({}, encoder_layers=1).sites[0][1]
    assert alone.skip.value == alone.branch_scale.value == math.sqrt(0.5)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_similarity_is_that_of_the_recursion(dropout):
    """The authors' loop, which carries the variance along, written out."""
    scheme = load_scheme("deepscale_lm", {"beta_squared": 0.05})
    config = TransformerConfig(**ENCODER, encoder_layers=40, vocab_size=30, dropout=dropout)
    context = stack_context(config, "encoder", optimizer_family="adam")
    kept, r, variance = 1 - dropout, 0.221 * (1 - dropout), 1.0
    for layer in range(1, 41):
        assert scheme.similarity(context, layer) == pytest.approx(r, rel=1e-12)
        for kind in ("self", "ffn"):
            out = kept
            if kind == "ffn":
                out *= r + ((1 - r**2) ** 0.5 - r * math.acos(r)) / math.pi
            r = (0.95 * r * variance + 0.05 * out) / (0.95 * variance + 0.05)
            variance = 0.95 * variance + 0.05
    assert variance == pytest.approx(1.0, rel=1e-12)


def test_a_thousand_layers_without_dropout_have_draws():
    assert _plan({}, encoder_layers=1000, dropout=0.0).sites[-1][1].init["v"].value > 0
    assert _plan({"beta_squared": 0.9}, encoder_layers=1000).sites[-1][1].init["v"].value > 0


@torch.no_grad()
def test_stream_and_feed_forward_start_at_variance_1():
    """On tokens as alike as it assumes: correlation 0.221, variance 1, at any ratio of d_ff to d."""
    torch.manual_seed(3)
    config = TransformerConfig(
        **ENCODER, encoder_layers=12, d_model=256, ffn_dim=512, num_heads=4, vocab_size=30, dropout=0.0
    )  # fmt: skip
    model = Transformer(config, load_scheme("deepscale_lm"))
    shared = torch.randn(4, 1, 256)
    x = math.sqrt(0.221) * shared + math.sqrt(1 - 0.221) * torch.randn(4, 64, 256)
    state = x
    for layer in model.encoder.layers:
        ffn = layer.sublayers["ffn"]
        y = ffn.branch(ffn.residual.pre(state), Inputs(), None)
        assert y.square().mean().item() == pytest.approx(1.0, rel=0.15)
        state = layer(state, Inputs())
        assert state.square().mean().item() == pytest.approx(1.0, rel=0.2)


@torch.no_grad()
def test_logits_start_at_variance_1():
    torch.manual_seed(3)
    config = TransformerConfig(**ENCODER, encoder_layers=2, vocab_size=2000, dropout=0.0)
    model = Transformer(config, load_scheme("deepscale_lm")).eval()
    logits = model(torch.randint(2, 1999, (2, 16)))
    assert logits.std().item() == pytest.approx(1.0, rel=0.15)


@torch.no_grad()
def test_post_is_deepnorm_with_alpha_lam_over_beta():
    """LN_eps(lam x + beta y) = LN_(eps / beta^2)(lam / beta x + y); at 0.005 alpha is 14.1."""
    assert math.sqrt(0.995 / 0.005) == pytest.approx(14.1, abs=0.05)
    sizes = {"encoder_layers": 3, "d_model": 16, "ffn_dim": 24, "num_heads": 2, "vocab_size": 30}
    config = TransformerConfig(**ENCODER, **sizes)
    scheme = load_scheme("deepscale_lm", {"placement": "post", "beta_squared": 0.005})
    model = Transformer(config, scheme).double().eval()
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    state, other = x, x
    for layer in model.encoder.layers:
        state = layer(state, Inputs())
        for sublayer in layer.sublayers.values():
            norm = sublayer.residual.post
            total = math.sqrt(0.995 / 0.005) * other + sublayer.branch(other, Inputs(), None)
            other = torch.nn.functional.layer_norm(
                total, (16,), norm.weight, norm.bias, norm.eps / 0.005
            )
    torch.testing.assert_close(state, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("shape", [(6, 6), (0, 6)])
def test_other_architectures_are_refused_with_the_reason(shape):
    with pytest.raises(
        ConfigError, match=r"encoder_only, not .*how alike tokens are in an encoder"
    ):
        coefficients(load_scheme("deepscale_lm"), encoder_layers=shape[0], decoder_layers=shape[1])


def test_a_model_and_an_adopted_one_say_why_not():
    with pytest.raises(ConfigError, match="causal and cross-attention have no formula"):
        Transformer(TransformerConfig(vocab_size=30), load_scheme("deepscale_lm"))
    layer = torch.nn.TransformerDecoderLayer(8, 2, 16)
    decoder = torch.nn.TransformerDecoder(layer, 2)
    with pytest.raises(AdaptError, match="causal and cross-attention have no formula"):
        deepnet.apply_scheme(decoder, "deepscale_lm", layers=(2, 2))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"beta_squared": 1.0}, r"beta_squared is 1\.0"),
        ({"alike": 0.0}, r"alike is 0\.0"),
        ({"tables": 0}, "tables is 0"),
    ],
)
def test_impossible_options_are_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        load_scheme("deepscale_lm", options)


@pytest.mark.parametrize(("options", "tables"), [({}, 2), ({"tables": 1}, 1), ({"tables": 3}, 3)])
def test_the_embedding_is_one_of_the_tables_that_are_added_up(options, tables):
    ends = _plan(options, encoder_layers=12, d_model=256, ffn_dim=1024, dropout=0.1).ends
    assert ends.init["embedding"].value == pytest.approx(math.sqrt(0.9 / tables))
