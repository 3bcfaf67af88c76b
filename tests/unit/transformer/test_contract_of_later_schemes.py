"""Sketches of schemes to come: each must fit the contract without a change to any layer.

They are not the catalogue's schemes: no coefficients are checked, only that the contract carries their structure, that
they train, and that cached decoding stays exact.
"""

import itertools
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    Constant,
    Ends,
    Init,
    Learned,
    Policy,
    ResidualScheme,
    SitePlan,
    Stream,
    embedding_init,
    glorot,
)
from deepnet.transformer.initialize import parameter_policies
from deepnet.transformer.models import Transformer, TransformerConfig
from deepnet.transformer.residual import Residual


class HistoryStream(Stream):
    """DLCL, pre-norm: each layer reads a learned combination of all earlier layers' outputs."""

    def __init__(self, depth):
        self.depth = depth

    def open(self, x):
        history = x.new_zeros(self.depth + 1, *x.shape)
        return x, torch.cat([x[None], history[1:]])

    def read(self, state, site):
        x, history = state
        if site.site.first_in_layer:
            x = torch.einsum("l,lbtd->btd", site.extra["row"].weight[0], history)
        entered, skip = site.enter(x)
        return entered, skip

    def write(self, state, carry, site, y):
        x, (_, history) = site(carry, y), state
        if site.site.last_in_layer:
            place = torch.arange(len(history), device=x.device) == site.site.layer
            history = torch.where(place[:, None, None, None], x[None], history)
        return x, history

    def close(self, state, ends):
        return ends(state[0])


class TwoStreams(Stream):
    """ResiDual: a post-norm stream that branches read, and the plain sum of their outputs."""

    def open(self, x):
        return x, x

    def read(self, state, site):
        return site.enter(state[0])

    def write(self, state, carry, site, y):
        return site(carry, y), state[1] + y

    def close(self, state, ends):
        return state[0] + ends(state[1])


class HyperStream(Stream):
    """Hyper-connections: n streams, mixed and fed by learned maps (here static ones)."""

    def open(self, x):
        return torch.stack([x, x])

    def read(self, state, site):
        maps = site.extra["maps"]
        x = torch.einsum("n,nbtd->btd", maps["read"].weight[0], state)
        entered, _ = site.enter(x)
        return entered, torch.einsum("mn,nbtd->mbtd", maps["mix"].weight, state)

    def write(self, state, carry, site, y):
        return carry + site.extra["maps"]["write"].weight[0][:, None, None, None] * y

    def close(self, state, ends):
        return ends(state.sum(0))


def _maps():
    return nn.ModuleDict(
        {
            name: nn.Linear(2, 1 if name != "mix" else 2, bias=False)
            for name in ("read", "mix", "write")
        }
    )


@dataclass(frozen=True, kw_only=True)
class PreNorm(ResidualScheme):
    def site(self, context, site):
        return SitePlan(branch=site.kind, pre=context.norm(), init=glorot())

    def ends(self, context):
        return Ends(final=context.norm(), init=embedding_init(context))


@dataclass(frozen=True, kw_only=True)
class Dlcl(PreNorm):
    def stack(self, context):
        plan = super().stack(context)
        row = {"row": lambda: nn.Linear(context.num_layers + 1, 1, bias=False)}
        sites = tuple((s, replace(p, extra=row if s.first_in_layer else {})) for s, p in plan.sites)
        return replace(plan, sites=sites, stream=HistoryStream(context.num_layers))


@dataclass(frozen=True, kw_only=True)
class ResiDual(PreNorm):
    def site(self, context, site):
        return SitePlan(branch=site.kind, post=context.norm(), init=glorot())

    def stream(self, context):
        return TwoStreams()


@dataclass(frozen=True, kw_only=True)
class HyperConnections(PreNorm):
    def site(self, context, site):
        return replace(super().site(context, site), extra={"maps": _maps})

    def stream(self, context):
        return HyperStream()


@dataclass(frozen=True, kw_only=True)
class ReZero(ResidualScheme):
    def site(self, context, site):
        scale = Learned(init=0.5, scope="layer")
        return SitePlan(branch=site.kind, branch_scale=scale, init=glorot())


@dataclass(frozen=True, kw_only=True)
class Admin(ResidualScheme):
    def site(self, context, site):
        skip = Learned(init=1.0, shape="vector")
        return SitePlan(branch=site.kind, post=context.norm(), skip=skip, init=glorot())

    def prepare(self, model, batches):
        """Measure each branch's variance in one pass, setting every skip before it is used."""
        variances = {stack.name: 1.0 for stack in model.stacks()}

        def profile(residual, inputs):
            name = residual.site.stack
            residual.skip.factor.data.fill_(variances[name] ** 0.5)
            variances[name] += inputs[1].var().item()

        sites = [module for module in model.modules() if isinstance(module, Residual)]
        hooks = [site.register_forward_pre_hook(profile) for site in sites]
        with torch.no_grad():
            model(*next(iter(batches)))
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True, kw_only=True)
class TFixup(ResidualScheme):
    def site(self, context, site):
        return SitePlan(branch=site.kind, init=glorot((9 * context.num_layers) ** -0.25))

    def ends(self, context):
        std = (9 * context.num_layers) ** -0.25 * context.d_model**-0.5
        draw = Init("normal", std)
        return Ends(init={**embedding_init(context), "embedding": draw, "vocabulary": draw})


@dataclass(frozen=True, kw_only=True)
class FixNorm(PreNorm):
    def ends(self, context):
        draw = Init("uniform", 0.01)
        draws = {**embedding_init(context), "embedding": draw, "vocabulary": draw}
        return replace(super().ends(context), unit_rows=True, init=draws)


@dataclass(frozen=True, kw_only=True)
class MergedAttention(ResidualScheme):
    def branches(self, context):
        return ("merged", "ffn") if context.stack == "decoder" else ("self", "ffn")

    def site(self, context, site):
        return SitePlan(branch=site.kind, post=context.norm(), init=glorot())


@dataclass(frozen=True, kw_only=True)
class EveryInnerPart(ResidualScheme):
    """Norms on q, k, v, heads and activation, a head scale, shifts, no biases, policies: no scheme has them all."""

    def site(self, context, site):
        names = ("q", "k", "v", "heads") if site.kind != "ffn" else ("activation",)
        return SitePlan(
            branch=site.kind,
            pre=context.norm(multiplier=site.layer**-0.5),
            out=context.norm(),
            skip=Constant(0.5 + 0.1 * site.layer),
            skip_from="normed",
            inner_norms={name: context.norm() for name in names},
            head_scale=Learned(init=1.0, shape="vector"),
            preactivation_scale=Learned(init=1.0, shape="vector"),
            shifts={"preactivation": 0.0, "activation": 0.0},
            attention_multiplier=0.1,
            bias=False,
            init=glorot(),
            policy={"q": Policy(lr=0.5), "scale": Policy(lr=0.1, weight_decay=0.0)},
        )

    def ends(self, context):
        return Ends(
            embedding_norm=context.norm(),
            embedding_multiplier=1.0,
            exit_shift=0.0,
            exit_scale=Learned(init=1.0),
            logit_scale=Constant(2.0),
            init=embedding_init(context),
        )


SKETCHES = [
    Dlcl(),
    ResiDual(),
    HyperConnections(),
    ReZero(),
    Admin(),
    FixNorm(),
    MergedAttention(),
    EveryInnerPart(),
]
every_sketch = pytest.mark.parametrize("scheme", SKETCHES, ids=lambda s: type(s).__name__)


def _model(scheme, **shape):
    sizes = {
        "encoder_layers": 2,
        "decoder_layers": 3,
        "d_model": 16,
        "ffn_dim": 32,
        "num_heads": 2,
        "vocab_size": 30,
        "dropout": 0.0,
    }
    return Transformer(TransformerConfig(**{**sizes, **shape}), scheme).double()


@every_sketch
def test_it_learns_one_batch(scheme, sentences):
    model = _model(scheme)
    scheme.prepare(model, iter([sentences]))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    target = torch.randint(0, 29, (12,))
    losses = []
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(*sentences).flatten(0, 1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@every_sketch
def test_cached_decoding_is_exact(scheme, sentences):
    source, keep, target_in = sentences
    model = _model(scheme).eval()
    cache = model.begin(model.encode(source, keep), keep)
    steps = [model.step(target_in[:, [t]], t, cache)[:, 0] for t in range(target_in.shape[1])]
    full = model(source, keep, target_in)
    torch.testing.assert_close(torch.stack(steps, 1), full, rtol=0, atol=1e-12)


@every_sketch
def test_its_state_comes_back(scheme, sentences):
    model, other = _model(scheme), _model(scheme)
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(*sentences), other(*sentences))


def test_rezero_has_one_scalar_per_layer():
    names = [n for n, p in _model(ReZero()).named_parameters() if p.shape == (1,)]
    assert len(names) == 2 + 3


def test_admin_profiles_growing_skips(sentences):
    model = _model(Admin())
    Admin().prepare(model, iter([sentences]))
    sites = [m for m in model.decoder.modules() if isinstance(m, Residual)]
    skips = [site.skip.factor.mean().item() for site in sites]
    assert skips[0] == 1.0
    assert all(a < b for a, b in itertools.pairwise(skips))


def test_t_fixup_cannot_share_embeddings_of_stacks_that_disagree():
    with pytest.raises(ConfigError, match="tie_embeddings"):
        _model(TFixup())
    model = _model(TFixup(), tie_embeddings="decoder", vocab_size=2000, d_model=64)
    report = {(w.stack, w.role): w for w in model.role_weights()}
    for stack, layers in (("encoder", 2), ("decoder", 3)):
        weight = report[stack, "embedding"].parameter[:-1]
        expected = (9 * layers) ** -0.25 * 64**-0.5
        assert weight.std().item() == pytest.approx(expected, rel=0.02)


def test_rows_that_are_shared_cannot_be_drawn_in_two_ways():
    class TwoDraws(FixNorm):
        def ends(self, context):
            ends = super().ends(context)
            return replace(ends, init={**ends.init, "vocabulary": Init("normal", 1.0)})

    with pytest.raises(ConfigError, match="tie_embeddings"):
        _model(TwoDraws())
    assert _model(TwoDraws(), tie_embeddings="none").vocabulary.rows.unit_rows


def test_fixnorm_rows_have_unit_length_in_every_use(sentences):
    model = _model(FixNorm())
    lengths = model.target_embedding.rows()[:-1].norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))
    assert model.vocabulary.rows.rows()[0].norm().item() == pytest.approx(1.0)


def test_policies_reach_their_role_and_nothing_else():
    policies = {name: policy for name, _, policy in parameter_policies(_model(EveryInnerPart()))}
    assert {p.lr for n, p in policies.items() if n.endswith("branch.q.weight")} == {0.5}
    assert {p.lr for n, p in policies.items() if n.endswith("branch.k.weight")} == {1.0}
    assert {p.lr for n, p in policies.items() if n.endswith("head_scale.factor")} == {0.1}
    decayed = [name for name, policy in policies.items() if policy.weight_decay]
    assert all(name.endswith(("q.weight", "k.weight", "v.weight", "out.weight", "fc1.weight",
                              "fc2.weight", "embedding.weight")) for name in decayed)  # fmt: skip
