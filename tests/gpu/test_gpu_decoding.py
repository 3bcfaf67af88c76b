"""Search on the device in the precisions that people use: its score is what one pass gives the same translation."""

import pytest
import torch

from deepnet.decoding.batches import pad
from deepnet.decoding.interface import DecodingConfig
from deepnet.decoding.scoring import score_tokens
from deepnet.decoding.search import search

pytestmark = pytest.mark.gpu

SOURCES = [[5, 3, 9, 2, 0], [7, 0], [4, 4, 8, 1, 11, 6, 2, 0]]


def searched(model, device, sources):
    source, keep = pad(sources, padding=model.start, device=device)
    return search(model, source, keep, config=DecodingConfig(beam_size=4, n_best=4))


@pytest.mark.parametrize(
    ("precision", "error"),
    # of a log-probability per token, of one to three nats: a hundred roundings of float32, a few of bf16
    [("float32", 1e-5), ("bfloat16", 0.03)],
)
def test_the_score_of_search_is_that_of_one_pass(train, make_small, device, precision, error):
    model, _ = train(model=make_small(dropout=0.0), max_steps=6)
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        for source, hypotheses in zip(SOURCES, searched(model, device, SOURCES), strict=True):
            targets = [hypothesis.tokens for hypothesis in hypotheses]
            scores = score_tokens(
                model, [source] * len(targets), targets, source_padding=model.start
            )
            found = [hypothesis.score for hypothesis in hypotheses]
            assert found == pytest.approx([score.score for score in scores], abs=error)


def test_neither_batch_nor_padding_changes_a_translation(make_small, device):
    model = make_small().to(device).double()
    together = searched(model, device, SOURCES)
    for source, expected in zip(SOURCES, together, strict=True):
        (alone,) = searched(model, device, [source])
        assert [h.tokens for h in alone] == [h.tokens for h in expected]
        assert [h.score for h in alone] == pytest.approx([h.score for h in expected], rel=1e-9)
