"""What follows from the depth, for encoders and decoders of different depths and for either alone.

Each expectation is the source's formula with N encoder and M decoder layers; where both are equal a scheme could take
one for the other and nobody would see.
"""

import math

import pytest

from deepnet.schemes.catalogue import load_scheme
from deepnet.schemes.coefficients import coefficients
from deepnet.transformer.models import TransformerConfig
from deepnet.transformer.plans import stack_context

DEPTHS = [(12, 6), (6, 18), (3, 100), (24, 0), (0, 7)]


def _deepnorm(n, m):
    """Return (alpha, beta) of the encoder and of the decoder (arXiv 2203.00555, figure 2)."""
    if not (n and m):
        alone = ((2 * (n + m)) ** 0.25, (8 * (n + m)) ** -0.25)
        return alone, alone
    root = (n**4 * m) ** (1 / 16)
    return (0.81 * root, 0.87 / root), ((3 * m) ** 0.25, (12 * m) ** -0.25)


def _branchnorm(n, m):
    """Return DeepNorm's beta; the skip is plain (arXiv 2305.02790, section 3.2)."""
    return tuple((1.0, beta) for _, beta in _deepnorm(n, m))


def _sites(n, m):
    """Return the residual sites of the encoder and of the decoder, which has cross-attention beside an encoder only."""
    return 2 * n, (3 if n else 2) * m


def _admin(square):
    """Return the skip of admin-torch's forms for R sites of a stack, with plain gains."""
    return lambda n, m: tuple((math.sqrt(square(r)) if r else None, 1.0) for r in _sites(n, m))


def _t_fixup(n, m):
    """Return 0.67 N^(-1/4) and (9 M)^(-1/4) (Huang et al., ICML 2020, section 3)."""
    return (1.0, n and 0.67 * n**-0.25), (1.0, m and (9 * m) ** -0.25)


def _sub_ln(n, m):
    """Return Magneto's gains (arXiv 2210.06423, table 2); in a decoder with cross-attention, whose gain is 1, none."""
    if n and m:
        return (1.0, math.sqrt(math.log(3 * m) * math.log(2 * n) / 3)), (1.0, None)
    return ((1.0, math.sqrt(math.log(2 * (n + m)))),) * 2


def _b2t(n, m):
    """Return L^(-1/2) of the stack's own layers on every matrix (the authors' code)."""
    return (1.0, n and n**-0.5), (1.0, m and m**-0.5)


@pytest.mark.parametrize(("n", "m"), DEPTHS)
@pytest.mark.parametrize(
    ("name", "options", "formula"),
    [
        ("deepnorm", {}, _deepnorm),
        ("branchnorm", {}, _branchnorm),
        ("admin", {"form": "log"}, _admin(lambda r: (r + 1) / math.log(r + 1) - 1)),
        ("admin", {"form": "linear"}, _admin(lambda r: 1)),
        ("admin", {"form": "constant"}, _admin(lambda r: r)),
        ("t_fixup", {}, _t_fixup),
        ("sub_ln", {}, _sub_ln),
        ("b2t", {"rescale": True}, _b2t),
    ],
)
def test_alpha_and_beta_of_both_stacks(name, options, formula, n, m):
    found = coefficients(load_scheme(name, options), encoder_layers=n, decoder_layers=m)
    for stack, layers, claimed in zip(("encoder", "decoder"), (n, m), formula(n, m), strict=True):
        if not layers:
            assert found[stack] is None
            continue
        for key, value in zip(("alpha", "beta"), claimed, strict=True):
            assert found[stack][key] == (value and pytest.approx(value, rel=1e-12)), (stack, key)


def _rows(name, n, m, options=None):
    """Return the sites with the layers of their own stack."""
    found = coefficients(load_scheme(name, options or {}), encoder_layers=n, decoder_layers=m)
    return [(row, n if row["stack"] == "encoder" else m) for row in found["sites"]]


@pytest.mark.parametrize(("n", "m"), DEPTHS)
def test_a_decoders_gains_in_magneto(n, m):
    # cross-attention is plain; what else a decoder has beside an encoder takes sqrt(ln 3M), alone sqrt(ln 2M)
    for row, layers in _rows("sub_ln", n, m):
        if row["stack"] == "decoder":
            gain = 1.0 if row["kind"] == "cross" else math.sqrt(math.log((3 if n else 2) * layers))
            large = {value for role, value in row["gain"].items() if role not in ("q", "k")}
            assert all(value == pytest.approx(gain, rel=1e-12) for value in large)
            assert {row["gain"].get("q", 1.0), row["gain"].get("k", 1.0)} == {1.0}


@pytest.mark.parametrize(("n", "m"), DEPTHS)
def test_gains_that_depend_on_the_layer_count_their_own_stack(n, m):
    for row, layers in _rows("post_ln_init", n, m):  # arXiv 2203.00555, section 3: 1 / (L - l + 1)
        assert set(row["gain"].values()) == {1 / (layers - row["layer"] + 1)}
    for row, _ in _rows("ds_init", n, m):  # arXiv 1908.11365: l^(-1/2)
        assert set(row["gain"].values()) == {row["layer"] ** -0.5}


@pytest.mark.parametrize(("n", "m"), DEPTHS)
def test_fixup_counts_the_sites_of_both_stacks(n, m):
    # arXiv 1901.09321, section 4: L^(-1/(2m - 2)) for m matrices in a branch, L all residual branches of the network
    total = sum(_sites(n, m))
    for row, _ in _rows("r_fixup", n, m):
        gain = row["gain"]
        if row["kind"] == "ffn":
            assert gain["fc1"] == pytest.approx(total**-0.5, rel=1e-12)
        else:
            for role in ("q", "k", "v"):
                assert gain[role] == pytest.approx(total ** (-1 / 6), rel=1e-12)


@pytest.mark.parametrize(("n", "m"), DEPTHS)
def test_keels_skip_is_the_number_of_sites_of_its_stack(n, m):
    encoder, decoder = _sites(n, m)
    for row, _ in _rows("keel", n, m):
        sites = encoder if row["stack"] == "encoder" else decoder
        assert row["skip"] == (1.0 if row["layer"] == 1 else sites)


@pytest.mark.parametrize(("n", "m"), DEPTHS)
@pytest.mark.parametrize("power", [1.0, 0.5])
def test_completeps_branches_are_divided_by_the_depth_of_their_stack(n, m, power):
    options = {"depth_exponent": power, "L_base": 2}
    for row, layers in _rows("completep", n, m, options):  # arXiv 2505.01618, table 1: m_L^(-a)
        assert row["branch"] == pytest.approx((layers / 2) ** -power, rel=1e-12)


def test_hybrid_norms_last_matrices_are_divided_by_sqrt_2l():
    for row, layers in _rows("hybrid_norm", 0, 7):
        last = "fc2" if row["kind"] == "ffn" else "out"
        assert row["gain"][last] == pytest.approx((2 * layers) ** -0.5, rel=1e-12)
        assert {value for role, value in row["gain"].items() if role != last} == {1.0}


def _plan(name, stack, n, m, options=None, **shape):
    architecture = "encoder_decoder" if n and m else f"{stack}_only"
    config = TransformerConfig(
        architecture=architecture, encoder_layers=n, decoder_layers=m, vocab_size=30, **shape
    )
    context = stack_context(config, stack, optimizer_family="adam")
    return load_scheme(name, options or {}).stack(context)


@pytest.mark.parametrize(("n", "m"), DEPTHS)
def test_the_share_of_post_norm_layers_is_that_of_the_stack(n, m):
    for stack, layers in (("encoder", n), ("decoder", m)):
        if layers:
            plan = _plan("mix_ln", stack, n, m, {"ratio": 0.5})
            post = {site.layer for site, plan in plan.sites if plan.post is not None}
            assert post == set(range(1, layers // 2 + 1))


@pytest.mark.parametrize(("n", "m"), DEPTHS)
def test_t_fixups_embeddings_follow_their_stack(n, m):
    # (9 N)^(-1/4) and (9 M)^(-1/4) times N(0, 1/d)
    for stack, layers in (("encoder", n), ("decoder", m)):
        if layers:
            ends = _plan("t_fixup", stack, n, m, tie_embeddings="none", d_model=64).ends
            assert ends.init["embedding"].value == pytest.approx((9 * layers) ** -0.25 / 8)


@pytest.mark.parametrize(("n", "m"), DEPTHS)
def test_completeps_shared_ends_follow_the_deeper_stack(n, m):
    # eps m_N^(-1) m_L^(-a), with m_N = d / d_base = 2 and the deeper stack's m_L
    options = {"d_base": 32, "L_base": 2}
    for stack, layers in (("encoder", n), ("decoder", m)):
        if layers:
            policy = _plan("completep", stack, n, m, options, d_model=64).ends.policy["embedding"]
            assert policy.eps == pytest.approx(2 / max(n, m) / 2)


@pytest.mark.parametrize(("n", "m"), [(12, 6), (6, 18), (5, 7)])
@pytest.mark.parametrize(("family", "p", "q"), [("sgd", 2, 2), ("adam", 1, 1), ("lamb", 2, 1)])
def test_the_essays_condition_at_either_depth(n, m, family, p, q):
    """3M sites of the decoder, and 2N of the encoder through M cross-attentions, change the output by 1 in all."""
    found = coefficients(
        load_scheme("deepnorm", {"convention": "essay"}),
        encoder_layers=n, decoder_layers=m, optimizer_family=family,
    )  # fmt: skip
    encoder, decoder = found["encoder"], found["decoder"]
    assert 3 * m * decoder["beta"] ** p / decoder["alpha"] ** q == pytest.approx(1, rel=1e-12)
    through = m * decoder["beta"] ** 2 / decoder["alpha"]
    change = through * 2 * n * encoder["beta"] ** p / encoder["alpha"] ** q
    assert change == pytest.approx(1, rel=1e-12)
