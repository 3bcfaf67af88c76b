import pytest
import torch

from deepnet.config import build
from deepnet.decoding.interface import DecodingConfig
from deepnet.decoding.search import search
from deepnet.errors import ConfigError, DataError

SOURCE = torch.tensor([[3, 2, 0], [2, 2, 0], [4, 1, 0], [3, 3, 0]])


def config(**settings):
    """Outputs of at most `limit` tokens for the three-token sources above."""
    limit = settings.pop("limit", 4)
    return DecodingConfig(max_length_ratio=0.0, max_length_constant=limit, **settings)


def exhaustive(model, source, *, limit, length_penalty):
    outputs = [
        (total / (len(tokens) + 1) ** length_penalty, tokens)
        for tokens, total in model.every_output(tuple(source), limit)
    ]
    return sorted(outputs, reverse=True)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_beam_as_wide_as_the_space_is_exhaustive_search(prefix_model, length_penalty, seed):
    model = prefix_model(4, seed)
    settings = config(beam_size=200, n_best=7, length_penalty=length_penalty)
    found = search(model, SOURCE, None, config=settings)
    for source, hypotheses in zip(SOURCE.tolist(), found, strict=True):
        expected = exhaustive(model, source, limit=4, length_penalty=length_penalty)[:7]
        assert [h.tokens for h in hypotheses] == [tokens for _, tokens in expected]
        assert [h.score for h in hypotheses] == pytest.approx([s for s, _ in expected], abs=1e-12)


def greedy(model, source, limit):
    """An independent loop over one sentence without cache, mask or batch."""
    tokens, total = [], 0.0
    while True:
        logp = model.logits(tuple(source), tuple(tokens)).log_softmax(0)
        token = int(logp.argmax()) if len(tokens) < limit else 0
        total += float(logp[token])
        if token == 0:
            return tokens, total
        tokens.append(token)


@pytest.mark.parametrize("early_stopping", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_beam_1_is_greedy(prefix_model, seed, early_stopping):
    model = prefix_model(9, seed)
    settings = config(beam_size=1, limit=12, early_stopping=early_stopping)
    found = search(model, SOURCE, None, config=settings)
    for source, (hypothesis,) in zip(SOURCE.tolist(), found, strict=True):
        tokens, total = greedy(model, source, 12)
        assert hypothesis.tokens == tokens
        assert hypothesis.log_probability == pytest.approx(total, abs=1e-12)


def reference_beam(model, source, *, beam, limit, penalty, early_stopping, n_best):
    """Beam search over Python lists, one sentence, no cache: the definition in the plainest words."""
    open_, finished = [((), 0.0)], []
    for position in range(limit + 1):
        continuations, endings = [], []
        for tokens, total in open_:
            logp = model.logits(tuple(source), tokens).log_softmax(0).tolist()
            endings.append((total + logp[0], tokens))
            continuations += [(total + logp[i], (*tokens, i)) for i in range(1, len(logp))]
        continuations = sorted(continuations, reverse=True)[:beam]
        best = sorted([*continuations, *endings], reverse=True)[:beam]
        accepted = endings if position == limit else [e for e in endings if e in best]
        finished += [(total / (position + 1) ** penalty, list(t)) for total, t in accepted]
        finished = sorted(finished, reverse=True)[:beam]
        open_ = [(tokens, total) for total, tokens in continuations]
        if early_stopping and len(finished) == beam:
            break
    return finished[:n_best]


@pytest.mark.parametrize("early_stopping", [True, False])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("beam", [2, 3, 5])
def test_beam_search_equals_its_plain_definition(prefix_model, beam, penalty, early_stopping):
    for seed in range(6):
        model = prefix_model(7, seed)
        settings = config(
            beam_size=beam, limit=7, length_penalty=penalty, n_best=2, early_stopping=early_stopping
        )
        found = search(model, SOURCE, None, config=settings)
        for source, hypotheses in zip(SOURCE.tolist(), found, strict=True):
            expected = reference_beam(
                model, source, beam=beam, limit=7, penalty=penalty, n_best=2,
                early_stopping=early_stopping,
            )  # fmt: skip
            assert [h.tokens for h in hypotheses] == [tokens for _, tokens in expected]
            scores = [score for score, _ in expected]
            assert [h.score for h in hypotheses] == pytest.approx(scores, abs=1e-12)


def test_a_search_does_not_stop_while_a_longer_output_may_be_better(prefix_model):
    """With a limit of two tokens the last one still divides the score by three."""
    for seed in range(60):
        model = prefix_model(4, seed)
        settings = config(beam_size=3, limit=2, length_penalty=2.0, early_stopping=False)
        found = search(model, SOURCE, None, config=settings)
        for source, (hypothesis,) in zip(SOURCE.tolist(), found, strict=True):
            ((score, tokens),) = reference_beam(
                model, source, beam=3, limit=2, penalty=2.0, early_stopping=False, n_best=1
            )
            assert hypothesis.tokens == tokens
            assert hypothesis.score == pytest.approx(score, abs=1e-12)


def test_entries_of_dead_hypotheses_leave_the_cache(prefix_model):
    model, sizes = prefix_model(9, seed=3, sharpness=0.5), []
    step = model.step

    def recorded_step(tokens, position, cache, keep):
        logits = step(tokens, position, cache, keep)
        sizes.append(cache.entries.shape[1])
        return logits

    model.step = recorded_step
    settings = config(beam_size=4, limit=40, early_stopping=False, n_best=4)
    found = search(model, SOURCE, None, config=settings)
    for source, hypotheses in zip(SOURCE.tolist(), found, strict=True):
        expected = reference_beam(
            model, source, beam=4, limit=40, penalty=1.0, early_stopping=False, n_best=4
        )
        assert [h.tokens for h in hypotheses] == [tokens for _, tokens in expected]
    assert len(sizes) > 20
    assert sizes[-1] < 0.7 * 4 * len(sizes)


def test_the_limit_follows_each_sentence_not_the_batch(prefix_model):
    model = prefix_model(6, sharpness=0.0)  # uniform: without a limit, nothing would end soon
    source = torch.tensor([[3, 2, 1, 1, 4, 0], [2, 0, 5, 5, 5, 5]])
    keep = torch.tensor([[True] * 6, [True] * 2 + [False] * 4])
    settings = DecodingConfig(
        beam_size=1, max_length_ratio=1.5, max_length_constant=1, length_penalty=0.0
    )
    model.logits = lambda source, prefix: torch.tensor([-50.0, 0, 1, 0, 0, 0]).double()
    found = search(model, source, keep, config=settings)
    assert [len(h[0].tokens) for h in found] == [10, 4]


def test_a_source_longer_than_the_positions_is_refused(prefix_model):
    model = prefix_model(6)
    model.max_positions = 2
    with pytest.raises(DataError, match=r"3 tokens.* 2 positions"):
        search(model, SOURCE, None, config=config())


def test_the_output_never_needs_more_positions_than_there_are(prefix_model):
    model = prefix_model(6)
    model.max_positions = 5
    model.logits = lambda source, prefix: torch.tensor([-50.0, 0, 1, 0, 0, 0]).double()
    found = search(model, SOURCE, None, config=config(limit=100, beam_size=3))
    assert {len(h[0].tokens) for h in found} == {4}  # and the end: 5 inputs, start included


def test_dropout_is_off_during_search_and_back_afterwards(prefix_model):
    model = prefix_model(6).train()
    search(model, SOURCE, None, config=config())
    assert model.training


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.5}, "temperature has no effect"),
        ({"method": "sampling", "beam_size": 4}, "beam_size has no effect"),
        ({"n_best": 6}, "n_best is 6, more than beam_size 5"),
        ({"beam_sise": 4}, "did you mean 'beam_size'"),
        ({"top_p": 0.0, "method": "sampling"}, "top_p"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        build(DecodingConfig, settings, where="decoding")
