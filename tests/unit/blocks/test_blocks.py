"""Sites for hand-written layers compute what our Transformer's do, and their weights start as its weights do."""

import itertools
import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import deepnet
from deepnet.errors import ConfigError
from deepnet.schemes.catalogue import list_schemes, scheme_class
from deepnet.transformer.inputs import Inputs

ROWS = [
    (name, architecture)
    for name in list_schemes()
    for architecture in scheme_class(name).architectures
]
PAGE = Path(__file__).parents[3] / "docs" / "building_blocks.md"


def shape(architecture, **changes):
    sizes = {"d_model": 16, "ffn_dim": 24, "num_heads": 2, "vocab_size": 30, "dropout": 0.0}
    layers = {
        "encoder_layers": 0 if architecture == "decoder_only" else 2,
        "decoder_layers": 0 if architecture == "encoder_only" else 2,
    }
    return deepnet.TransformerConfig(
        **{"architecture": architecture, **layers, **sizes, "positions": "rotary", **changes}
    )


def perturb(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)


def through_by_hand(stream, state, site, sublayer, inputs):
    """What a loop of one's own does where the stream makes the values of an attention."""
    entered, carry = stream.read(state, site)
    source, ids = (inputs.memory, None) if site.site.kind == "cross" else (entered, inputs.ids)
    own = sublayer.branch.v(source)
    values, state = stream.values(state, site, own, source=source, ids=ids)
    y = sublayer.compute(entered, inputs._replace(values=values))
    return stream.write(state, carry, site, y)


@pytest.mark.parametrize(("name", "architecture"), ROWS)
def test_the_sites_of_every_scheme_compute_what_the_transformers_do(name, architecture):
    """The Transformer's branches, called from a loop written by hand around the sites alone."""
    torch.manual_seed(1)
    config, scheme = shape(architecture), deepnet.load_scheme(name)
    model = deepnet.Transformer(config, scheme).double()
    model.advance(1000)
    perturb(model)
    stack = model.stacks()[-1]
    sites = deepnet.residual_sites(scheme, config, stack=stack.name, by_hand=True).double()
    sites.advance(1000)
    sites.ends.load_state_dict(stack.ends.state_dict())
    if stack.entry.norm is not None:
        sites.norm.load_state_dict(stack.entry.norm.state_dict())
    x = torch.randn(3, 4, 16, dtype=torch.float64)
    ids = torch.randint(29, (3, 4))
    inputs = Inputs(causal=stack.name == "decoder", memory=torch.randn_like(x), ids=ids)
    state = sites.open(x)
    for layer, theirs in zip(sites.layers, stack.layers, strict=True):
        assert list(layer) == list(theirs.sublayers)
        for kind, sublayer in theirs.sublayers.items():
            layer[kind].load_state_dict(sublayer.residual.state_dict())
            if layer[kind].plan.values != "own":
                state = through_by_hand(sites.plan.stream, state, layer[kind], sublayer, inputs)
                continue
            state = sites.through(
                state, layer[kind], lambda entered, own=sublayer: own.compute(entered, inputs)
            )
    expected = stack.stream.open(x if stack.entry.norm is None else stack.entry.norm(x))
    for layer in stack.layers:
        expected = layer(expected, inputs)
    assert torch.equal(sites.close(state), stack.stream.close(expected, stack.ends))


def test_the_named_sites_are_their_equations():
    x, y = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    norm = nn.functional.layer_norm

    def equals(site, expected):
        torch.testing.assert_close(site.double()(x, y), expected, rtol=0, atol=1e-14)

    equals(deepnet.PostNorm(8), norm(x + y, (8,)))
    equals(deepnet.DeepNorm(8, 2.5), norm(2.5 * x + y, (8,)))
    rms = nn.functional.rms_norm(2.5 * x + y, (8,))
    equals(deepnet.DeepNorm(8, 2.5, make_norm=nn.RMSNorm), rms)
    branch = deepnet.BranchNorm(8, 10)
    for step, factor in ((0, 0.0), (3, 0.3), (10, 1.0), (99, 1.0)):
        branch.advance(step)
        equals(branch, norm(x + factor * y, (8,)))
    pre = deepnet.PreNorm(8).double()
    entered, skip = pre.enter(x)
    assert torch.equal(entered, norm(x, (8,), eps=1e-5))
    assert torch.equal(pre(skip, y), x + y)


def test_deepnorm_keeps_alpha_on_the_skip_and_out_of_the_parameters():
    site = deepnet.DeepNorm(8, 3.0).double()
    assert {name for name, _ in site.named_parameters()} == {"post.weight", "post.bias"}
    assert set(site.state_dict()) == {"post.weight", "post.bias"}
    x, weights = torch.randn(2, 4, 8, dtype=torch.float64)

    def gradient(one):
        """The gradient that reaches a branch whose output is 0, where both sites return LN(x)."""
        y = torch.zeros_like(x, requires_grad=True)
        return torch.autograd.grad((one.double()(x, y) * weights).sum(), y)[0]

    same = {"rtol": 1e-3, "atol": 1e-6}
    torch.testing.assert_close(3 * gradient(site), gradient(deepnet.PostNorm(8)), **same)
    with pytest.raises(ConfigError, match=r"alpha is -1\.0"):
        deepnet.DeepNorm(8, -1.0)


def test_the_step_is_saved_and_the_factor_follows_it():
    config = shape("decoder_only")
    for make in (
        lambda: deepnet.BranchNorm(16),
        lambda: deepnet.residual_sites("branchnorm", config, by_hand=True),
    ):
        first, second = make(), make()
        first.advance(1000)
        second.load_state_dict(first.state_dict())
        factors = [
            module.factor.item()
            for module in second.modules()
            if "factor" in dict(module.named_buffers(recurse=False))
        ]
        assert set(factors) == {0.25}


def test_scales_that_a_scheme_shares_are_shared():
    sites = deepnet.residual_sites("rezero", shape("encoder_decoder"), stack="decoder")
    assert sum(parameter.numel() for parameter in sites.parameters()) == 2
    first, second = sites.layers
    assert first["self"].branch is first["ffn"].branch is not second["ffn"].branch


def test_a_profile_is_taken_through_hand_written_layers():
    torch.manual_seed(1)
    config = shape("decoder_only")
    scheme = deepnet.load_scheme("admin")

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.sites = deepnet.residual_sites(scheme, config, by_hand=True)
            self.branches = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

        def forward(self, x):
            for site, branch in zip(
                itertools.chain(*(layer.values() for layer in self.sites.layers)),
                self.branches,
                strict=True,
            ):
                x = site(x, branch(x))
            return x

    model, x = Own().double(), torch.randn(64, 8, 16, dtype=torch.float64)
    scheme.prepare(model, iter([(x,)]))
    expected, stream = [1.0], x
    for branch in model.branches:  # w_1 = 1, w_(i+1)^2 = Var[w_i x] + Var[f(x)]
        w, y = expected[-1], branch(stream)
        expected.append(
            math.sqrt((w * stream).var(correction=0).item() + y.var(correction=0).item())
        )
        stream = nn.functional.layer_norm(w * stream + y, (16,))
    found = [site.skip.factor[0].item() for layer in model.sites.layers for site in layer.values()]
    assert found == pytest.approx(expected[:4], rel=1e-9)


def test_a_scheme_that_asks_for_more_is_refused_with_what_it_asks():
    config = shape("decoder_only")
    for name, asked in (
        ("sub_ln", r"a norm on its heads \(self\); a norm on its activation \(ffn\)"),
        ("branchnorm", r"a call of advance\(step\)"),
        ("admin", r"a call of scheme\.prepare"),
        ("ngpt", r"a call of scheme\.after_update"),
        ("completep", "the optimiser's multipliers"),
        ("scale_norm", "unit length"),
    ):
        with pytest.raises(ConfigError, match=asked):
            deepnet.residual_sites(name, config)
        assert deepnet.residual_sites(name, config, by_hand=True)


def test_a_stack_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="expected one of encoder, decoder"):
        deepnet.residual_sites("deepnorm", shape("encoder_decoder"))
    with pytest.raises(ConfigError, match="stack is 'encoder'; expected one of decoder"):
        deepnet.residual_sites("deepnorm", shape("decoder_only"), stack="encoder")
    with pytest.raises(ConfigError, match="defined for decoder_only, not encoder_only"):
        deepnet.residual_sites("hybrid_norm", shape("encoder_only"), by_hand=True)


# Draws by role ------------------------------------------------------------------------------------------------------


def test_each_role_gets_its_std_also_within_a_fused_matrix():
    torch.manual_seed(1)
    site = deepnet.DeepNorm(64, 2.0, beta=0.25)
    fused, out = nn.Linear(64, 192), nn.Linear(64, 64)
    q, k, v = fused.weight.chunk(3)
    deepnet.initialize(site, {"q": q, "k": k, "v": v, "out": out})
    # Glorot of a square matrix is d^(-1/2); beta is for v and out alone
    for weight, gain in ((q, 1.0), (k, 1.0), (v, 0.25), (out.weight, 0.25)):
        assert weight.std().item() == pytest.approx(gain / 8, rel=4 / math.sqrt(2 * 64 * 64))
    assert not out.bias.any()
    fc1, fc2 = nn.Linear(64, 256), nn.Linear(256, 64)
    deepnet.initialize(site, {"fc1": fc1, "fc2": fc2})
    for linear in (fc1, fc2):
        target = 0.25 * math.sqrt(2 / (64 + 256))
        assert linear.weight.std().item() == pytest.approx(target, rel=4 / math.sqrt(2 * 64 * 256))


@pytest.mark.parametrize("rows", [64, 32])
def test_keys_and_values_of_fewer_heads_get_the_std_of_full_ones(rows):
    torch.manual_seed(1)
    sizes = {"q": rows, "k": rows // 4, "v": rows // 4}
    linears = {role: nn.Linear(64, size) for role, size in sizes.items()}
    site = deepnet.DeepNorm(64, 2.0, beta=0.25)
    deepnet.initialize(site, {**linears, "out": nn.Linear(rows, 64)})
    for role, linear in linears.items():
        target = (0.25 if role == "v" else 1.0) * math.sqrt(2 / (64 + rows))
        error = 4 / math.sqrt(2 * linear.weight.numel())
        assert linear.weight.std().item() == pytest.approx(target, rel=error)


def test_the_ends_of_a_stack_are_drawn_too():
    torch.manual_seed(1)
    sites = deepnet.residual_sites("deepnorm", shape("decoder_only", d_model=64))
    embedding = nn.Embedding(500, 64, padding_idx=499)
    deepnet.initialize(sites, {"embedding": embedding})
    assert not embedding.weight[499].any()
    found = embedding.weight[:499].std().item()
    assert found == pytest.approx(1 / 8, rel=4 / math.sqrt(2 * 499 * 64))


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (("q", "k", "out"), "the roles given are k, out, q; expected q, k, v and out"),
        (("fc1", "fc2", "w"), "the roles given are fc1, fc2, w; expected"),
        ((), "expected q, k, v and out"),
        (("fc1", "fc2"), r"plans no draw for 'fc1'; give it a gain \(beta=\.\.\.\)"),
    ],
)
def test_a_missing_or_unknown_role_is_refused(roles, message):
    with pytest.raises(ConfigError, match=message):
        deepnet.initialize(deepnet.DeepNorm(8, 2.0), {role: nn.Linear(8, 8) for role in roles})
    with pytest.raises(ConfigError, match="expected some of embedding"):
        deepnet.initialize(
            deepnet.residual_sites("deepnorm", shape("decoder_only")), {"q": nn.Linear(8, 8)}
        )


# The page -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page():
    """What the page's code defines, run from top to bottom."""
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(code) == 3
    torch.manual_seed(1)
    found = {}
    for block in code:
        exec(block, found)
    return found


def test_the_page_runs_and_its_model_is_what_it_says(page):
    assert page["logits"].shape == (2, 12, 1000)
    assert len(page["model"].sites.layers) == 50
    assert torch.isfinite(page["logits"]).all()
    skips = {
        site.plan.skip.value for layer in page["model"].sites.layers for site in layer.values()
    }
    assert skips == {100**0.25}  # (2M)^(1/4)
    v = torch.stack([a.qkv.weight.chunk(3)[2] for a in page["model"].attentions])
    assert v.std().item() == pytest.approx(400**-0.25 / 8, rel=4 / math.sqrt(2 * v.numel()))


@pytest.mark.parametrize("scheme", ["deepnorm", "keel", "resi_dual", "hyper_connections"])
def test_the_pages_model_is_ours_with_the_same_weights(page, scheme):
    """Every parameter of the hand-written model copied into deepnet.Transformer."""
    torch.manual_seed(1)
    config = page["config"].model_copy(update={"decoder_layers": 6, "positions": "rotary"})
    own = page["Model"](scheme, config).double()
    perturb(own.sites)
    ours = deepnet.Transformer(config, deepnet.load_scheme(scheme)).double()
    decoder = ours.decoder
    decoder.positions = None  # the page's attention knows no positions
    with torch.no_grad():
        ours.target_embedding.weight.copy_(own.embedding.weight)
    decoder.ends.load_state_dict(own.sites.ends.state_dict())
    for layer, sites, attention, ffn in zip(
        decoder.layers, own.sites.layers, own.attentions, own.feed_forwards, strict=True
    ):
        for kind, site in sites.items():
            layer.sublayers[kind].residual.load_state_dict(site.state_dict())
        weights, biases = attention.qkv.weight.chunk(3), attention.qkv.bias.chunk(3)
        state = {
            f"{role}.{name}": value
            for name, values in (("weight", weights), ("bias", biases))
            for role, value in zip("qkv", values, strict=True)
        }
        state |= {f"out.{name}": value for name, value in attention.out.state_dict().items()}
        layer.sublayers["self"].branch.load_state_dict(state)
        layer.sublayers["ffn"].branch.load_state_dict(ffn.state_dict())
    ids = torch.randint(0, 999, (2, 12))
    torch.testing.assert_close(own(ids)[..., :-1], ours(ids), rtol=0, atol=1e-10)
