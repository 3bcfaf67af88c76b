import math

import pytest
import torch

from deepnet.decoding.ensemble import Ensemble
from deepnet.decoding.interface import DecodingConfig
from deepnet.decoding.scoring import score_tokens
from deepnet.decoding.search import search
from deepnet.errors import ConfigError, DataError

SOURCES = [[3, 2, 0], [2, 2, 5, 1, 0], [4, 0]]
TARGETS = [[1, 2], [], [3, 3, 1, 4]]


def expected_total(model, source, target):
    return sum(
        float(model.logits(tuple(source), tuple(target[:t])).log_softmax(0)[token])
        for t, token in enumerate([*target, 0])
    )


def test_forced_scores_are_sums_of_log_probabilities(prefix_model):
    model = prefix_model(6)
    scores = score_tokens(model, SOURCES, TARGETS, source_padding=6, length_penalty=0.6)
    for source, target, score in zip(SOURCES, TARGETS, scores, strict=True):
        total = expected_total(model, source, target)
        assert score.num_tokens == len(target) + 1
        assert score.log_probability == pytest.approx(total, abs=1e-12)
        assert score.score == pytest.approx(total / (len(target) + 1) ** 0.6, abs=1e-12)


def test_a_target_longer_than_the_positions_is_refused(prefix_model):
    model = prefix_model(6)
    model.max_positions = 4
    with pytest.raises(DataError, match=r"5 tokens.* 4 positions"):
        score_tokens(model, [[0]], [[1, 1, 1, 1]], source_padding=6)


def test_an_ensemble_averages_probabilities(prefix_model):
    models = [prefix_model(6, seed) for seed in (1, 2, 3)]
    (score,) = score_tokens(Ensemble(models), [SOURCES[0]], [TARGETS[0]], source_padding=6)
    total = 0.0
    for t, token in enumerate([*TARGETS[0], 0]):
        prefix = tuple(TARGETS[0][:t])
        mean = sum(
            float(model.logits(tuple(SOURCES[0]), prefix).softmax(0)[token]) for model in models
        )
        total += math.log(mean / 3)
    assert score.log_probability == pytest.approx(total, abs=1e-12)


def test_an_ensembles_search_agrees_with_its_forced_scores(prefix_model):
    ensemble = Ensemble([prefix_model(6, seed) for seed in (1, 2)])
    settings = DecodingConfig(beam_size=3, n_best=3, max_length_ratio=0, max_length_constant=6)
    (found,) = search(ensemble, torch.tensor([SOURCES[0]]), None, config=settings)
    targets = [hypothesis.tokens for hypothesis in found]
    forced = score_tokens(ensemble, [SOURCES[0]] * 3, targets, source_padding=6)
    assert [h.score for h in found] == pytest.approx([f.score for f in forced], abs=1e-12)


def test_an_ensemble_of_one_model_twice_is_that_model(prefix_model):
    settings = DecodingConfig(beam_size=3, max_length_ratio=0, max_length_constant=6)
    source, model = torch.tensor([SOURCES[0]]), prefix_model(6)
    alone = search(model, source, None, config=settings)
    twice = search(Ensemble([model, model]), source, None, config=settings)
    assert [h.tokens for h in twice[0]] == [h.tokens for h in alone[0]]


def test_models_of_different_vocabularies_make_no_ensemble(prefix_model):
    with pytest.raises(ConfigError, match="7 and 8"):
        Ensemble([prefix_model(6), prefix_model(7)])
    with pytest.raises(ConfigError, match="no models"):
        Ensemble([])
