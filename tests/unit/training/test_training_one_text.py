"""The loss of models that read one text, against a computation by hand; and what such a model may see."""

import math

import pytest
import torch

from deepnet.data.objectives import Batch
from deepnet.evaluation.perplexity import perplexity
from deepnet.training.engine.precision import Precision
from deepnet.training.loss import token_loss, validation_loss

PAD = 29  # of the fixture's vocabulary of 30
DECODER = {"architecture": "decoder_only", "encoder_layers": 0}
ENCODER = {"architecture": "encoder_only", "decoder_layers": 0}
CPU = {"device": torch.device("cpu"), "precision": Precision("fp32", "cpu")}


def _by_hand(logits, wanted):
    """Return the sum of -log p over {(row, place): id}, softmax written out."""
    total = 0.0
    for (row, place), index in wanted.items():
        scores = logits[row, place].tolist()
        total -= scores[index] - math.log(sum(math.exp(score) for score in scores))
    return total


def test_next_token_loss_is_that_of_each_token_given_those_before_it(make_model):
    model = make_model(**DECODER)
    lines = [[5, 9, 2, 0], [7, 0]]
    source = torch.tensor([[0, 5, 9, 2], [0, 7, 0, PAD]])
    target = torch.tensor([[5, 9, 2, 0], [7, 0, PAD, PAD]])
    loss = token_loss(label_smoothing=0.0)(model, Batch(source, None, None, target, 6, 6))
    expected = 0.0
    for line in lines:
        for place, token in enumerate(line):
            prefix = torch.tensor([[0, *line[:place]]])
            expected += _by_hand(model(prefix)[:, -1:], {(0, 0): token})
    assert loss.item() == pytest.approx(expected, rel=1e-9)


def test_masked_loss_is_that_of_the_masked_tokens_alone_given_the_whole_line(make_model):
    model = make_model(**ENCODER)
    source = torch.tensor([[5, 2, 9, 0], [2, 0, PAD, PAD]])
    target = torch.tensor([[PAD, 7, PAD, PAD], [4, PAD, PAD, PAD]])
    batch = Batch(source, source != PAD, None, target, 2, 6)
    expected = _by_hand(model(source[:1]), {(0, 1): 7}) + _by_hand(
        model(source[1:, :2]), {(0, 0): 4}
    )
    assert token_loss(label_smoothing=0.0)(model, batch).item() == pytest.approx(expected, rel=1e-9)
    found = validation_loss(model, [batch], **CPU)
    assert found == pytest.approx(expected / 2, rel=1e-9)
    assert perplexity(found) == pytest.approx(math.exp(expected / 2), rel=1e-9)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_a_decoder_alone_does_not_see_the_future_and_an_encoder_alone_does(make_model, positions):
    line = torch.randint(2, PAD, (1, 6))
    other = line.clone()
    other[0, 4] = 2 + line[0, 4] % 20
    for shape, is_causal in ((DECODER, True), (ENCODER, False)):
        model = make_model(**shape, positions=positions).eval()
        before, after = model(line)[0], model(other)[0]
        assert torch.equal(before[:4], after[:4]) == is_causal
        assert not torch.allclose(before[4:], after[4:])


@pytest.mark.parametrize("scheme", ["post_ln", "pre_ln", "deepnorm"])
def test_the_start_of_a_line_has_a_finite_gradient_at_any_depth(make_model, scheme):
    """It would not, were padding, whose embedding is zero, the start: rotary positions add nothing to it."""
    model = make_model(scheme, **DECODER, decoder_layers=40, positions="rotary").float()
    line = torch.randint(2, PAD, (2, 5))
    source = torch.cat([torch.zeros(2, 1, dtype=torch.long), line[:, :-1]], dim=1)
    token_loss(label_smoothing=0.0)(model, Batch(source, None, None, line, 10, 10)).backward()
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
    assert 0.01 < norm / 10 < 1000


def test_perplexity_of_what_knows_nothing_is_the_vocabulary_and_never_an_error():
    assert perplexity(math.log(4000)) == pytest.approx(4000)
    assert perplexity(1e4) == math.inf
