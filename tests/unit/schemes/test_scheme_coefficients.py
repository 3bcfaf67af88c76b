"""DeepNorm's numbers against the paper's formulas and bounds, and the essay's conditions."""

from dataclasses import dataclass, field

import pytest

from deepnet.errors import ConfigError
from deepnet.schemes.base import ResidualScheme, SitePlan, StackContext, glorot
from deepnet.schemes.catalogue import load_scheme, scheme_class
from deepnet.schemes.coefficients import coefficients

DEPTHS = [(6, 6), (18, 18), (100, 100), (500, 500)]


def _of(n, m, *, family="adam", **options):
    found = coefficients(
        load_scheme("deepnorm", options),
        encoder_layers=n,
        decoder_layers=m,
        optimizer_family=family,
    )
    return found["encoder"], found["decoder"]


@pytest.mark.parametrize(("n", "m"), DEPTHS)
def test_encoder_decoder(n, m):
    encoder, decoder = _of(n, m)
    assert encoder["alpha"] == pytest.approx(0.81 * (n**4 * m) ** (1 / 16), rel=1e-12)
    assert encoder["beta"] == pytest.approx(0.87 * (n**4 * m) ** (-1 / 16), rel=1e-12)
    assert decoder["alpha"] == pytest.approx((3 * m) ** (1 / 4), rel=1e-12)
    assert decoder["beta"] == pytest.approx((12 * m) ** (-1 / 4), rel=1e-12)


def test_one_stack():
    encoder, decoder = _of(24, 0)
    assert decoder is None
    assert encoder["alpha"] == pytest.approx(48**0.25, rel=1e-12)
    assert encoder["beta"] == pytest.approx(192**-0.25, rel=1e-12)
    encoder, decoder = _of(0, 96)
    assert encoder is None
    assert decoder["alpha"] == pytest.approx(192**0.25, rel=1e-12)
    assert decoder["beta"] == pytest.approx(768**-0.25, rel=1e-12)


@pytest.mark.parametrize(("n", "m"), DEPTHS)
def test_the_papers_bounds(n, m):
    # arXiv 2203.00555, section 4.2: single stack, decoder, and encoder through the cross-attentions
    one, _ = _of(n, 0)
    assert 2 * n * 2 * one["beta"] ** 2 / one["alpha"] ** 2 == pytest.approx(1, rel=1e-12)
    encoder, decoder = _of(n, m)
    assert 3 * m * 2 * decoder["beta"] ** 2 / decoder["alpha"] ** 2 == pytest.approx(1, rel=1e-12)
    through = m * decoder["beta"] ** 2 / decoder["alpha"]
    assert through * 4 * n * encoder["beta"] ** 2 / encoder["alpha"] ** 2 == pytest.approx(
        1.012, abs=5e-4
    )


@pytest.mark.parametrize(
    ("family", "balance", "alpha", "beta"),
    [  # R = 2N = 36 sites; kexue.fm/archives/8978
        ("sgd", "symmetric", 36**0.25, 36**-0.25),
        ("sgd", "gain", 1.0, 36**-0.5),
        ("sgd", "skip", 36**0.5, 1.0),
        ("adam", "symmetric", 36**0.5, 36**-0.5),
        ("lamb", "symmetric", 1.0, 36**-0.5),
    ],
)
def test_the_essays_coefficients(family, balance, alpha, beta):
    encoder, _ = _of(18, 0, family=family, convention="essay", balance=balance)
    assert encoder["alpha"] == pytest.approx(alpha, rel=1e-12)
    assert encoder["beta"] == pytest.approx(beta, rel=1e-12)


@pytest.mark.parametrize(("family", "power"), [("sgd", -0.5), ("adam", -1.0), ("lamb", -0.5)])
def test_the_essays_pre_norm_form(family, power):
    encoder, _ = _of(18, 0, family=family, convention="essay", placement="pre")
    assert encoder["alpha"] == 1.0
    assert encoder["beta"] == pytest.approx(36**power, rel=1e-12)


@pytest.mark.parametrize(("family", "p", "q"), [("sgd", 2, 2), ("adam", 1, 1), ("lamb", 2, 1)])
def test_the_essays_condition_holds_in_an_encoder_decoder(family, p, q):
    encoder, decoder = _of(12, 7, family=family, convention="essay")
    assert 21 * decoder["beta"] ** p / decoder["alpha"] ** q == pytest.approx(1, rel=1e-12)
    through = 7 * decoder["beta"] ** 2 / decoder["alpha"]
    assert through * 24 * encoder["beta"] ** p / encoder["alpha"] ** q == pytest.approx(
        1, rel=1e-12
    )


def test_gains_of_post_ln_init_fall_towards_the_bottom():
    rows = coefficients(load_scheme("post_ln_init"), encoder_layers=18, decoder_layers=18)["sites"]
    for row in rows:
        assert set(row["gain"].values()) == {1 / (18 - row["layer"] + 1)}


def test_sites_are_listed_in_order():
    rows = coefficients(load_scheme("deepnorm"), encoder_layers=1, decoder_layers=2)["sites"]
    assert [(row["stack"], row["layer"], row["kind"]) for row in rows] == [
        ("encoder", 1, "self"),
        ("encoder", 1, "ffn"),
        ("decoder", 1, "self"),
        ("decoder", 1, "cross"),
        ("decoder", 1, "ffn"),
        ("decoder", 2, "self"),
        ("decoder", 2, "cross"),
        ("decoder", 2, "ffn"),
    ]
    assert rows[0]["gain"]["q"] == 1.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"balance": "gain"}, "no effect"),
        ({"optimizer": "adam"}, "no effect"),
        ({"convention": "essay", "placement": "pre", "balance": "skip"}, "no effect"),
        ({"convension": "essay"}, "did you mean 'convention'"),
        ({"convention": "eassy"}, "scheme.convention"),
    ],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        load_scheme("deepnorm", options)


def test_an_optimizer_that_contradicts_the_recipe_is_refused():
    with pytest.raises(ConfigError, match=r"scheme\.optimizer is 'sgd'"):
        _of(6, 6, convention="essay", optimizer="sgd")


def test_a_misspelt_scheme_gets_a_suggestion():
    with pytest.raises(ConfigError, match="did you mean 'deepnorm'"):
        scheme_class("depnorm")


def test_a_users_own_scheme_is_loaded_by_module_and_class():
    assert scheme_class("deepnet.schemes.post_ln:Scheme") is scheme_class("post_ln")
    with pytest.raises(ConfigError, match="cannot be imported"):
        scheme_class("deepnet.schemes.post_ln:Missing")


@dataclass(frozen=True, kw_only=True)
class Asking(ResidualScheme):
    """A scheme that keeps what it was told."""

    told: list[StackContext] = field(default_factory=list)

    def site(self, context, site):
        self.told.append(context)
        return SitePlan(branch=site.kind, init=glorot())


def test_a_scheme_is_told_0_of_what_is_not_known_and_the_paper_s_base_size_of_the_rest():
    scheme = Asking()
    coefficients(scheme, encoder_layers=1, decoder_layers=0)
    context = scheme.told[0]
    assert (context.vocab_size, context.num_kv_heads) == (0, 0)
    assert (context.d_model, context.ffn_dim, context.num_heads) == (512, 2048, 8)


@pytest.mark.parametrize("family", ["sgd", "adam", "lamb"])
@pytest.mark.parametrize("recipe", ["sgd", "adam", "lamb"])
def test_a_scheme_for_another_optimiser_than_the_recipe_s_is_refused(family, recipe):
    scheme = {"convention": "essay", "optimizer": family}
    if family == recipe:
        assert _of(6, 6, family=recipe, **scheme) == _of(6, 6, family=recipe, convention="essay")
    else:
        words = (
            f"scheme.optimizer is '{family}' but the recipe's optimiser is of the family '{recipe}'"
        )
        with pytest.raises(ConfigError, match=words):
            _of(6, 6, family=recipe, **scheme)
