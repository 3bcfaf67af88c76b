import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from deepnet.theory.branchnorm_gradient import gradient_terms
from deepnet.theory.jacobian import jacobian_norms


def loss_of(model, sentences):
    source, keep, target_in = sentences
    return lambda: F.cross_entropy(
        model(source, keep, target_in).flatten(0, 1), torch.arange(12) % 29
    )


@pytest.mark.parametrize("scheme", ["post_ln", "deepnorm", "branchnorm"])
def test_the_factors_multiply_to_the_gradient(make_model, sentences, scheme):
    model = make_model(scheme, decoder_layers=3)
    model.advance(1000)
    terms = [
        t for t in gradient_terms(model, loss_of(model, sentences)) if t.site.stack == "decoder"
    ]
    assert len(terms) == 9
    for lower, upper in itertools.pairwise(terms):
        assert upper.leaving == pytest.approx(lower.arriving, rel=1e-10)
    whole = terms[-1].arriving * math.prod(t.norm * t.residual for t in terms)
    assert terms[0].leaving == pytest.approx(whole, rel=1e-10)


def test_what_leaves_the_stack_is_the_gradient_of_its_input(make_model, sentences):
    model = make_model("branchnorm", architecture="encoder_only", decoder_layers=0)
    model.advance(500)
    source = sentences[0]
    entered = []
    model.encoder.entry.register_forward_hook(lambda m, a, out: entered.append(out))

    def loss():
        return F.cross_entropy(model(source).flatten(0, 1), torch.arange(15) % 29)

    first = gradient_terms(model, loss)[0]
    entered.clear()
    (expected,) = torch.autograd.grad(loss(), entered)
    assert first.leaving == pytest.approx(float(expected.norm()), rel=1e-10)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_last_norms_factor_by_finite_differences(make_model, sentences):
    """Perturb y of the last site and see what the loss does: its gradient is arriving * norm."""
    model = make_model("deepnorm", architecture="encoder_only", decoder_layers=0)
    source = sentences[0][:1]
    post = list(model.encoder.layers)[-1].sublayers["ffn"].residual.post
    kick = torch.zeros(1, 5, 16, dtype=torch.float64)
    post.register_forward_pre_hook(lambda m, args: (args[0] + kick,))

    def loss():
        return F.cross_entropy(model(source).flatten(0, 1), torch.arange(5))

    slopes = []
    with torch.no_grad():
        for index in range(kick.numel()):
            ends = []
            for sign in (1, -1):
                kick.view(-1)[index] = sign * 1e-5
                ends.append(float(loss()))
            kick.zero_()
            slopes.append((ends[0] - ends[1]) / 2e-5)
    last = gradient_terms(model, loss)[-1]
    assert last.arriving * last.norm == pytest.approx(math.hypot(*slopes), rel=1e-6)


def test_branchnorm_begins_as_norms_alone(make_model, sentences):
    model = make_model("branchnorm")
    terms = gradient_terms(model, loss_of(model, sentences))
    decoder = [t for t in terms if t.site.stack == "decoder"]
    assert {t.branch for t in decoder} == {0.0}
    assert {t.weights for t in terms} == {0.0}
    assert [t.residual for t in decoder] == [1.0] * 6
    assert [t.norm for t in decoder[1:-1]] == pytest.approx([1.0] * 4, abs=1e-4)  # eps
    assert [t.norm_estimate for t in decoder[1:]] == pytest.approx([1.0] * 5, abs=1e-4)


def test_the_branchs_part_is_linear_in_the_factor(make_model, sentences):
    model = make_model("branchnorm", architecture="encoder_only", decoder_layers=0)
    parts = []

    def loss():
        return F.cross_entropy(model(sentences[0]).flatten(0, 1), torch.arange(15) % 29)

    for step in (1, 2):
        model.advance(step)
        parts.append([term.branch for term in gradient_terms(model, loss)])
    for once, twice in zip(*parts, strict=True):
        assert twice / once == pytest.approx(2.0, rel=1e-2)


def test_no_norms_factor_exceeds_its_jacobian(make_model, sentences):
    model = make_model("post_ln", architecture="encoder_only", decoder_layers=0)
    summed = []
    for layer in model.encoder.layers:
        for site in layer.sublayers.values():
            site.residual.post.register_forward_hook(
                lambda m, args, out: summed.append((m, args[0]))
            )
    terms = gradient_terms(
        model, lambda: F.cross_entropy(model(sentences[0]).flatten(0, 1), torch.arange(15) % 29)
    )
    for term, (norm, y) in zip(terms, list(summed), strict=True):
        assert term.norm <= float(jacobian_norms(norm, y).max())


def test_the_factors_of_looped_layers_multiply_over_all_passes(make_model, sentences):
    model = make_model("deepnorm", decoder_layers=3, loops=2)
    terms = [
        t for t in gradient_terms(model, loss_of(model, sentences)) if t.site.stack == "decoder"
    ]
    assert [t.site.layer for t in terms] == [layer for layer in (1, 2, 3) for _ in range(3)] * 2
    for lower, upper in itertools.pairwise(terms):
        assert upper.leaving == pytest.approx(lower.arriving, rel=1e-10)
    assert [t.weights for t in terms[:9]] == [t.weights for t in terms[9:]]
