import pytest
import torch

from deepnet.theory.identity import identity_distance


def silence(model):
    for layer in model.encoder.layers:
        torch.nn.init.zeros_(layer.sublayers["self"].branch.out.weight)
        torch.nn.init.zeros_(layer.sublayers["ffn"].branch.fc2.weight)


def encoder_only(make_model, scheme="deepnorm", layers=2):
    return make_model(scheme, architecture="encoder_only", encoder_layers=layers, decoder_layers=0)


def test_silent_branches_leave_the_identity(make_model, sentences):
    model = encoder_only(make_model)
    silence(model)
    found = identity_distance(model.encoder, lambda: model(sentences[0]))
    assert found.shares == (0.0,) * 4
    assert found.distance < 1e-4  # eps of three further norms


def test_first_share_by_hand(make_model, sentences):
    model = encoder_only(make_model)
    found = identity_distance(model.encoder, lambda: model(sentences[0]))
    x = model.encoder.entry(model.source_embedding(sentences[0]), 0)
    branch = model.encoder.layers[0].sublayers["self"].branch(x)
    alpha = 4**0.25
    expected = (branch.square().mean() / x.square().mean()).sqrt() / alpha
    assert found.shares[0] == pytest.approx(float(expected.detach()), rel=1e-10)


def test_deepnorm_is_nearer_than_post_ln(make_model, sentences):
    far, near = (
        identity_distance(model.encoder, lambda model=model: model(sentences[0]))
        for model in (encoder_only(make_model, s, 20) for s in ("post_ln", "deepnorm"))
    )
    assert near.distance < 0.5 * far.distance
    assert max(near.shares) < 0.2 < min(far.shares)


def test_a_looped_stack_has_a_share_for_each_site_that_runs(make_model, sentences):
    model = encoder_only(lambda *args, **shape: make_model(*args, loops=3, **shape))
    found = identity_distance(model.encoder, lambda: model(sentences[0]))
    assert len(set(found.shares)) == 12
    silence(model)
    found = identity_distance(model.encoder, lambda: model(sentences[0]))
    assert found.shares == (0.0,) * 12
    assert found.distance < 2e-4  # eps of eleven further norms
