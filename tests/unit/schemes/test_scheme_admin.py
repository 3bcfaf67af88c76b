"""Admin's pass against the same pass done by hand, and that it is done once."""

import itertools
from math import log, sqrt

import pytest
import torch

from deepnet.bundle import load_model_tensors, model_tensors
from deepnet.errors import ConfigError
from deepnet.schemes import admin
from deepnet.schemes.coefficients import coefficients
from deepnet.transformer.dropout import dropout
from deepnet.transformer.inputs import Inputs
from deepnet.transformer.masks import broadcast_keep
from deepnet.transformer.residual import Residual


def _skips(model, stack):
    sites = [m for m in model.modules() if isinstance(m, Residual) and m.site.stack == stack]
    return [site.skip.factor.detach().clone() for site in sites]


def _profile_by_hand(stack, ids, embedding, inputs):
    """Return the stack's output and its scales: w_(i+1)^2 = Var[w_i x] + Var[f_i(x)], over all elements."""
    x, w, found = stack.entry(embedding(ids), 0), 1.0, []
    for sublayer in stack.sites():
        found.append(w)
        y = dropout(sublayer.compute(x, inputs), 0.1)
        following = sqrt(((w * x).var(correction=0) + y.var(correction=0)).item())
        x, w = sublayer.residual.post(w * x + y), following
    return x, found


@pytest.fixture
def profiled(make_model, sentences):
    model = make_model("admin", dropout=0.1).eval()
    torch.manual_seed(7)
    model.scheme.prepare(model, iter([sentences]))
    return model


@torch.no_grad()
def test_the_pass_is_the_one_done_by_hand(profiled, make_model, sentences):
    source, keep, target_in = sentences
    keep = broadcast_keep(keep)
    torch.manual_seed(1)
    model = make_model("admin", dropout=0.1)
    load_model_tensors(model, model_tensors(profiled))
    torch.manual_seed(7)
    memory, encoder = _profile_by_hand(
        model.encoder, source, model.source_embedding, Inputs(keep=keep)
    )
    inputs = Inputs(causal=True, memory=memory, memory_keep=keep)
    _, decoder = _profile_by_hand(model.decoder, target_in, model.target_embedding, inputs)
    for stack, expected in (("encoder", encoder), ("decoder", decoder)):
        for factor, value in zip(_skips(profiled, stack), expected, strict=True):
            torch.testing.assert_close(factor, torch.full_like(factor, value), rtol=1e-10, atol=0)


def test_each_stack_starts_at_1_and_grows(profiled):
    for stack, sites in (("encoder", 4), ("decoder", 6)):
        values = [factor[0].item() for factor in _skips(profiled, stack)]
        assert values[0] == 1.0
        assert len(values) == sites
        # the first sum holds the embedding's variance instead of a norm's 1
        assert all(a < b for a, b in itertools.pairwise(values[1:]))


def test_the_pass_is_in_training_mode_and_leaves_no_trace(profiled, make_model, sentences):
    assert not profiled.training
    assert not any(m._forward_pre_hooks for m in profiled.modules())
    dry = make_model("admin", dropout=0.0)
    other = make_model("admin", dropout=0.5)
    load_model_tensors(other, model_tensors(dry))
    for model in (dry, other):
        model.scheme.prepare(model.eval(), iter([sentences]))
    # dropped out at rate p, a branch has 1 / (1 - p) times its second moment
    assert _skips(other, "decoder")[-1][0] > _skips(dry, "decoder")[-1][0]


def test_it_is_never_done_again(profiled, make_model, sentences):
    before = _skips(profiled, "decoder")
    resumed = make_model("admin", dropout=0.1)
    resumed.load_state_dict(profiled.state_dict())
    copied = make_model("admin", dropout=0.1)
    load_model_tensors(copied, model_tensors(profiled))
    for model in (profiled, resumed, copied):
        model.scheme.prepare(model, iter([(sentences[0][:1], None, sentences[2][:1])]))
        assert all(map(torch.equal, before, _skips(model, "decoder")))


def test_it_needs_a_batch_only_where_it_measures(make_model):
    model = make_model("admin")
    with pytest.raises(ConfigError, match="there is none"):
        model.scheme.prepare(model, iter([]))
    fixed = make_model("admin", {"form": "log"})
    fixed.scheme.prepare(fixed, iter([]))


@pytest.mark.parametrize(
    ("form", "encoder", "decoder"),
    [  # R = 12 and 18; microsoft/admin-torch, calculate_init
        ("log", sqrt(13 / log(13) - 1), sqrt(19 / log(19) - 1)),
        ("linear", 1.0, 1.0),
        ("constant", sqrt(12), sqrt(18)),
    ],
)
def test_the_forms_without_a_pass(form, encoder, decoder):
    found = coefficients(admin.Scheme(form=form), encoder_layers=6, decoder_layers=6)
    assert found["encoder"]["alpha"] == pytest.approx(encoder, rel=1e-12)
    assert found["decoder"]["alpha"] == pytest.approx(decoder, rel=1e-12)
