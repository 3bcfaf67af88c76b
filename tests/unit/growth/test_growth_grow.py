"""Grown models: the function is preserved where the scheme's sites hand their stream on, and nowhere else by claim."""

import pytest
import torch

from deepnet.errors import ConfigError
from deepnet.growth.grow import grow_model
from deepnet.growth.relayer import with_layers
from deepnet.schemes.catalogue import list_schemes, load_scheme
from deepnet.transformer.models import Transformer, TransformerConfig

PRESERVED = {
    "pre_ln", "completep", "peri_ln", "sub_ln", "layernorm_scaling", "scale_norm", "dyt", "derf", "rezero",
    "t_fixup", "r_fixup", "layerscale", "prores", "normformer", "gpas",
}  # fmt: skip
"""Norms before the branches or none, one stream; what the scheme adds besides is as it starts, and does nothing."""
REFUSED = {"denseformer", "dlcl", "keel", "mix_ln", "mudd", "value_embeddings"}
"""Averages over all layers before, and norms or tables that some layers have."""
JUMPS = {
    "post_ln",
    "deepnorm",
    "branchnorm",
    "admin",
    "ds_init",
    "post_ln_init",
    "keel",
    "resi_dual",
    "mhc",
}


@pytest.fixture
def trained(make_model):
    """Return a function (scheme, **shape) -> a float64 model none of whose numbers are as they start."""

    def make(scheme, options=None, **shape):
        model = make_model(scheme, options, **shape).eval()
        return disturbed(model)

    return make


def disturbed(model):
    """Move all that is trained but scales, whose starts decide what a silent site hands on."""
    scales = {
        id(p) for m in model.modules() if hasattr(m, "factor") for p in m.parameters(recurse=False)
    }
    with torch.no_grad():
        for parameter in model.parameters():
            if id(parameter) not in scales:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.advance(100_000)
    return model


def logits(model, sentences):
    with torch.no_grad():
        return model(*sentences)


def difference(model, other, sentences):
    return float((logits(model, sentences) - logits(other, sentences)).abs().max())


@pytest.mark.parametrize("method", ["stack", "interleave"])
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_a_grown_pre_ln_computes_the_same(trained, sentences, method, norm):
    model = trained("pre_ln", norm=norm)
    grown = grow_model(model, encoder_layers=6, decoder_layers=4, method=method)
    assert grown.jumps == ()
    assert [len(stack.layers) for stack in grown.model.stacks()] == [6, 4]
    assert difference(model, grown.model, sentences) < 1e-12


def shape_of(scheme):
    """Return two layers a stack of the first architecture that a scheme is defined for."""
    architecture = load_scheme(scheme).architectures[0]
    stacks = {"encoder_only": (2, 0), "decoder_only": (0, 2)}.get(architecture, (2, 2))
    layers = zip(("encoder_layers", "decoder_layers"), stacks, strict=True)
    return {"architecture": architecture, **dict(layers)}


@pytest.mark.parametrize("method", ["stack", "interleave"])
@pytest.mark.parametrize("scheme", sorted({*list_schemes()} - REFUSED))
def test_every_scheme_preserves_or_says_why_not(trained, sentences, scheme, method):
    model = trained(scheme, **shape_of(scheme))
    sentences = sentences if model.config.architecture == "encoder_decoder" else sentences[:2]
    wanted = {f"{stack.name}_layers": 4 for stack in model.stacks()}
    grown = grow_model(model, **wanted, method=method)
    assert torch.isfinite(logits(grown.model, sentences)).all()
    if scheme in PRESERVED:
        assert grown.jumps == ()
    if scheme in JUMPS:
        assert grown.jumps
    if not grown.jumps:
        assert difference(model, grown.model, sentences) < 1e-10


@pytest.mark.parametrize("scheme", sorted(REFUSED))
def test_what_a_scheme_keeps_by_place_does_not_go_over(trained, scheme):
    model = trained(scheme, **shape_of(scheme))
    wanted = {f"{stack.name}_layers": 4 for stack in model.stacks()}
    with pytest.raises(ConfigError, match="weights do not go over") as refused:
        grow_model(model, **wanted, method="interleave")
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only"])
@pytest.mark.parametrize("positions", ["learned", "rotary", "relative"])
def test_one_stack(trained, sentences, architecture, positions):
    layers = {f"{architecture.removesuffix('_only')}_layers": 2}
    shape = {"encoder_layers": 0, "decoder_layers": 0, "architecture": architecture, **layers}
    model = trained("pre_ln", positions=positions, **shape)
    grown = grow_model(model, **{name: 3 * n for name, n in layers.items()})
    assert difference(model, grown.model, sentences[:2]) < 1e-12


def test_what_is_planned_by_depth_goes_into_the_weights(trained, sentences):
    """CompleteP divides branches by depth: at twice the depth by twice as much, which the last matrices make up for."""
    model = trained("completep")
    made = grow_model(model, encoder_layers=4, decoder_layers=4).model
    before, now = model.sites()[0], made.sites()[0]
    assert now.residual.plan.branch_scale.value == before.residual.plan.branch_scale.value / 2
    torch.testing.assert_close(now.branch.out.weight, 2 * before.branch.out.weight)
    assert difference(model, made, sentences) < 1e-12


def test_coefficients_are_those_of_the_new_depth(trained):
    made = grow_model(trained("deepnorm"), encoder_layers=4, decoder_layers=4).model
    alphas = {site.residual.site.stack: site.residual.skip for site in made.sites()}
    assert alphas["decoder"] == pytest.approx((3 * 4) ** 0.25)
    assert alphas["encoder"] == pytest.approx(0.81 * (4**4 * 4) ** (1 / 16))


def test_new_layers_learn_from_the_first_update_on(trained, sentences):
    grown = grow_model(trained("peri_ln"), encoder_layers=4, decoder_layers=4).model
    grown(*sentences).square().sum().backward()
    for stack in grown.stacks():
        for place in (2, 3):
            held = [p for p in stack.layers[place].parameters() if p.grad is not None]
            assert max(float(p.grad.abs().max()) for p in held) > 1e-6


def test_copies_of_a_post_norm_model_have_its_weights(trained):
    model = trained("deepnorm")
    made = grow_model(model, encoder_layers=4, decoder_layers=4).model
    for place, origin in enumerate([0, 1, 0, 1]):
        old, new = (
            m.layers[n].state_dict() for m, n in ((model.decoder, origin), (made.decoder, place))
        )
        assert all(torch.equal(new[name], held) for name, held in old.items())


def test_the_order_of_the_layers(trained):
    model = trained("post_ln")
    places = {}
    for method in ("stack", "interleave"):
        made = grow_model(model, encoder_layers=4, method=method).model
        queries = [layer.sublayers["self"].branch.q.weight for layer in made.encoder.layers]
        olds = [layer.sublayers["self"].branch.q.weight for layer in model.encoder.layers]
        places[method] = [[torch.equal(q, old) for old in olds].index(True) for q in queries]
        assert len(made.decoder.layers) == 2
    assert places == {"stack": [0, 1, 0, 1], "interleave": [0, 0, 1, 1]}


def test_all_layers_of_a_model_are_that_model(trained, sentences):
    for scheme in ("pre_ln", "deepnorm", "hyper_connections"):
        model = trained(scheme)
        same = with_layers(model, {"encoder": [0, 1], "decoder": [0, 1]})
        assert difference(model, same, sentences) == 0.0


def test_the_generator_and_the_steps_stay(trained):
    model = trained("branchnorm")
    state = torch.get_rng_state()
    made = grow_model(model, encoder_layers=4).model
    assert torch.equal(torch.get_rng_state(), state)
    assert int(made.scheme_step) == 100_000


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"encoder_layers": 1}, "encoder_layers is 1, fewer than the 2 of the trained model"),
        ({"encoder_layers": 5}, "'stack' has every one of the 2 .* choose 4 or 6"),
        ({}, "2 encoder and 2 decoder layers already"),
        ({"encoder_layers": 2, "decoder_layers": 2}, "already"),
    ],
)
def test_what_cannot_be_grown(trained, wanted, words):
    with pytest.raises(ConfigError, match=words):
        grow_model(trained("pre_ln"), **wanted)


def test_a_stack_that_is_not_there():
    config = TransformerConfig(
        architecture="decoder_only",
        encoder_layers=0,
        decoder_layers=2,
        d_model=8,
        num_heads=2,
        vocab_size=9,
    )
    model = Transformer(config, load_scheme("pre_ln"))
    with pytest.raises(ConfigError, match="the model has no encoder"):
        grow_model(model, encoder_layers=4)


def test_layers_that_run_several_times(trained, sentences):
    model = trained("pre_ln", loops=2)
    grown = grow_model(model, encoder_layers=4, decoder_layers=6)
    assert grown.jumps == ()
    assert difference(model, grown.model, sentences) < 1e-12
