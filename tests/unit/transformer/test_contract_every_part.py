"""A scheme that asks for every inner part at once, as none of the catalogue does: layers carry out what a plan says.

What the catalogue's schemes ask for is checked over its rows (tests/unit/schemes/test_scheme_contract.py).
"""

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
    embedding_init,
    glorot,
)
from deepnet.schemes.scale_norm import Scheme as ScaleNorm
from deepnet.transformer.initialize import parameter_policies


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


def test_it_learns_one_batch(make_model, sentences):
    model = make_model(EveryInnerPart(), decoder_layers=3)
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


def test_cached_decoding_is_exact(make_model, sentences):
    source, keep, target_in = sentences
    model = make_model(EveryInnerPart(), decoder_layers=3).eval()
    cache = model.begin(model.encode(source, keep), keep)
    steps = [model.step(target_in[:, [t]], t, cache)[:, 0] for t in range(target_in.shape[1])]
    full = model(source, keep, target_in)
    torch.testing.assert_close(torch.stack(steps, 1), full, rtol=0, atol=1e-12)


def test_its_state_comes_back(make_model, sentences):
    model, other = make_model(EveryInnerPart()), make_model(EveryInnerPart())
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(*sentences), other(*sentences))


def test_policies_reach_their_role_and_nothing_else(make_model):
    model = make_model(EveryInnerPart())
    policies = {name: policy for name, _, policy in parameter_policies(model)}
    assert {p.lr for n, p in policies.items() if n.endswith("branch.q.weight")} == {0.5}
    assert {p.lr for n, p in policies.items() if n.endswith("branch.k.weight")} == {1.0}
    assert {p.lr for n, p in policies.items() if n.endswith("head_scale.factor")} == {0.1}
    decayed = [name for name, policy in policies.items() if policy.weight_decay]
    assert all(name.endswith(("q.weight", "k.weight", "v.weight", "out.weight", "fc1.weight",
                              "fc2.weight", "embedding.weight")) for name in decayed)  # fmt: skip


def test_rows_that_are_shared_cannot_be_drawn_in_two_ways(make_model):
    class TwoDraws(ScaleNorm):
        def ends(self, context):
            ends = super().ends(context)
            return replace(ends, init={**ends.init, "vocabulary": Init("normal", 1.0)})

    with pytest.raises(ConfigError, match="tie_embeddings"):
        make_model(TwoDraws())
    assert make_model(TwoDraws(), tie_embeddings="none").vocabulary.rows.unit_rows
