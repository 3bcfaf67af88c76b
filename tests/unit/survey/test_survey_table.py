"""The catalogue says of each scheme what a model of it has, and of options what becomes of them."""

import pytest

from deepnet.errors import ConfigError
from deepnet.schemes.base import Norm, ResidualScheme, SitePlan, glorot
from deepnet.schemes.catalogue import UNDEFINED, list_schemes, load_scheme
from deepnet.survey import refused_options, scheme_catalogue
from deepnet.survey.norm_places import describe_norms
from deepnet.transformer.models import Transformer, TransformerConfig
from deepnet.transformer.norms import norm_factory


@pytest.fixture(scope="module")
def rows():
    return {row["name"]: row for row in scheme_catalogue()}


def test_every_scheme_has_a_row_with_an_equation_and_a_source(rows):
    assert list(rows) == list_schemes()
    for row in rows.values():
        assert "<-" in row["equation"] or " = " in row["equation"]
        assert row["source"]
        assert row["architectures"]


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        # encoder and decoder of 4 layers: 20 sites; d = 512; a layer norm has 2 d numbers
        ("post_ln", 0),
        ("deepnorm", 0),
        ("pre_ln", 2 * 1024),
        ("peri_ln", 20 * 1024 + 2 * 2 * 1024),
        ("keel", (2 * 3 + 3 * 3) * 1024),  # a second norm in layers 2 to 4
        ("rezero", 8 - 20 * 1024),
        ("scale_norm", 20 + 2 - 20 * 1024),
        ("normformer", 12 * (8 + 1024) + 8 * 2 * 2048 + 2 * 1024),
        # one stack of 4 layers: q, k and v normed over 64 numbers, no norm before attention, one at the end
        ("hybrid_norm", 4 * (3 * 2 * 64 - 1024) + 1024),
    ],
)
def test_extra_parameters_are_what_the_sources_add(rows, name, extra):
    assert rows[name]["extra_parameters"] == extra


@pytest.mark.parametrize(
    ("name", "norms"),
    [
        ("deepnorm", "post"),
        ("pre_ln", "pre; final"),
        ("t_fixup", "none"),
        ("peri_ln", "pre, out; embedding; final"),
        ("mix_ln", "layer 1: post; layers 2 to 4: pre; final"),
        ("sub_ln", "self: pre, heads; cross: pre; ffn: pre, activation; final"),
        ("hybrid_norm", "self: q, k, v; ffn: pre; final"),
        ("scale_norm", "pre; final (ScaleNorm)"),
        ("layernorm_scaling", "pre; final"),
    ],
)
def test_norms_are_named_where_they_stand(rows, name, norms):
    assert rows[name]["norms"] == norms


class Own(ResidualScheme):
    """A norm after the second layer's feed-forward alone."""

    def site(self, context, site):
        here = site.layer == 2 and site.kind == "ffn"
        norm = Norm(norm_factory("rms_norm")) if here else None
        return SitePlan(branch=site.kind, post=norm, init=glorot())


def test_the_norms_of_a_scheme_of_ones_own_are_described():
    config = TransformerConfig(
        architecture="decoder_only",
        encoder_layers=0,
        decoder_layers=4,
        d_model=8,
        num_heads=2,
        vocab_size=9,
    )
    (stack,) = Transformer(config, Own()).stacks()
    assert (
        describe_norms(stack)
        == "layer 1: none; layer 2: self: none; ffn: post; layers 3 to 4: none (RMSNorm)"
    )


def build(name, options):
    """Build a model of every architecture of the scheme."""
    scheme = load_scheme(name, options)
    for architecture in scheme.architectures:
        layers = {
            f"{stack}_layers": 0 if architecture == f"{other}_only" else 1
            for stack, other in (("encoder", "decoder"), ("decoder", "encoder"))
        }
        shape = {"d_model": 8, "ffn_dim": 8, "num_heads": 2, "vocab_size": 9}
        Transformer(TransformerConfig(architecture=architecture, **layers, **shape), scheme)


@pytest.mark.parametrize("name", list_schemes())
def test_refused_options_are_those_that_are_refused(name):
    refused = refused_options(name)
    for options in refused.values():
        with pytest.raises(ConfigError) as caught:
            build(name, options)
        assert str(caught.value) in refused


def test_the_fewest_options_that_are_refused_are_shown():
    refused = refused_options("deepnorm")
    message = "balance 'gain' has no effect under placement 'pre'"
    assert refused[message] == {"convention": "essay", "placement": "pre", "balance": "gain"}
    assert refused_options("branchnorm")["T is -1; expected at least 1 update"] == {"T": -1}
    assert refused_options("pre_ln") == {}


def test_a_name_that_nobody_defines_is_no_scheme():
    assert not UNDEFINED.keys() & set(list_schemes())
    with pytest.raises(
        ConfigError, match=r"'mixnorm' is a row of table 2 of BranchNorm .* define nowhere"
    ):
        load_scheme("mixnorm")
    with pytest.raises(ConfigError, match="unknown scheme 'mixnrm'"):
        load_scheme("mixnrm")
