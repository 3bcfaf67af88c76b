import math

import pytest
import torch

from deepnet.errors import ConfigError
from deepnet.theory.live_model import (
    attention_magnitudes,
    branch_matrices,
    copy_matrices,
    gain,
    post_norm_sites,
    predicted_update,
    site_scales,
)


def test_gain_of_a_glorot_draw_is_its_gain():
    weight = torch.nn.init.xavier_normal_(torch.empty(900, 300), gain=0.37)
    assert gain(weight) == pytest.approx(0.37, rel=4 / math.sqrt(2 * weight.numel()))


def test_scales_read_off_a_model_are_its_coefficients(make_model):
    model = make_model(encoder_layers=3, decoder_layers=4, d_model=64, ffn_dim=256)
    encoder, decoder = (site_scales(stack) for stack in model.stacks())
    assert [s.kind for s in decoder] == ["self", "cross", "ffn"] * 4
    assert {s.alpha for s in decoder} == {12**0.25}
    assert all(s.alpha == pytest.approx(0.81 * (3**4 * 4) ** (1 / 16), rel=1e-12) for s in encoder)
    for scales in decoder:
        assert scales.v == pytest.approx(48**-0.25, rel=0.06)
        assert scales.w == pytest.approx(48**-0.25, rel=0.06)


def test_a_branch_scaled_by_a_is_a_skip_scaled_by_its_inverse(make_model):
    model = make_model("branchnorm", {"T": 100})
    assert {s.alpha for s in site_scales(model.stacks()[0])} == {math.inf}
    model.advance(25)
    assert {s.alpha for s in site_scales(model.stacks()[0])} == {4.0}


def test_prediction_is_the_theorem_by_hand(make_model):
    model = make_model("post_ln", architecture="encoder_only", decoder_layers=0)
    before = copy_matrices(model)
    assert predicted_update(model, before) == 0.0
    site = post_norm_sites(model.encoder)[1]
    fc1, fc2 = branch_matrices(site)
    assert fc1 is site.branch.fc1.weight
    with torch.no_grad():
        fc1[0, 0] += 0.003
        fc2[1, 1] -= 0.004
    expected = 0.005 * math.hypot(gain(fc1), gain(fc2))
    assert predicted_update(model, before) == pytest.approx(expected, rel=1e-9)


def test_the_encoders_step_is_predicted_through_the_cross_attentions(make_model):
    model = make_model("post_ln")
    before = copy_matrices(model)
    v, w = branch_matrices(post_norm_sites(model.encoder)[0])
    with torch.no_grad():
        w += 0.01
    crosses = [branch_matrices(s) for s in post_norm_sites(model.decoder) if s.kind == "cross"]
    through = sum(gain(c.v) * gain(c.w) for c in crosses)
    step = 0.01 * math.sqrt(w.numel())
    expected = through * step * math.hypot(gain(v), gain(w))
    assert predicted_update(model, before) == pytest.approx(expected, rel=1e-9)


def test_a_pre_norm_model_is_refused(make_model):
    with pytest.raises(ConfigError, match="not made of sites LN"):
        copy_matrices(make_model("pre_ln"))


def test_lemma_in_a_live_attention(make_model, sentences):
    model = make_model(architecture="encoder_only", encoder_layers=1, decoder_layers=0)
    source = sentences[0]
    (found,) = attention_magnitudes(model, lambda: model(source))
    attention = post_norm_sites(model.encoder)[0].branch
    x = model.encoder.entry(model.source_embedding(source), 0).detach()
    heads = [p(x).view(3, 5, 2, 8).transpose(1, 2) for p in (attention.q, attention.k, attention.v)]
    weights = torch.softmax(heads[0] @ heads[1].transpose(2, 3) / 8**0.5, dim=-1)
    expected = (weights @ heads[2]).square().mean().sqrt() / heads[2].square().mean().sqrt()
    assert found == pytest.approx(float(expected.detach()), rel=1e-9)


def test_a_looped_stack_is_predicted_as_all_of_its_layers(make_model):
    looped = make_model(encoder_layers=2, decoder_layers=3, loops=2)
    whole = make_model(encoder_layers=4, decoder_layers=6)
    held = looped.state_dict()
    depths = {"encoder": 2, "decoder": 3}
    for name, tensor in whole.state_dict().items():
        parts = name.split(".")
        if parts[1:2] == ["layers"]:
            parts[2] = str(int(parts[2]) % depths[parts[0]])
        tensor.copy_(held[".".join(parts)])
    found = []
    for model in (looped, whole):
        before = copy_matrices(model)
        with torch.no_grad():
            for site in model.sites():
                branch_matrices(site).w.mul_(1.01)
        found.append(predicted_update(model, before))
        assert found[-1] > 0
    assert found[0] == pytest.approx(found[1], rel=1e-12)
