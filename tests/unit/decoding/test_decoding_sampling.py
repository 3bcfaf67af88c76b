import pytest
import torch

from deepnet.decoding.interface import DecodingConfig
from deepnet.decoding.sampling import draw
from deepnet.decoding.search import search

SOURCE = torch.tensor([[3, 2, 0], [2, 2, 0], [4, 1, 0], [3, 3, 0]])


def config(**settings):
    return DecodingConfig(
        method="sampling", max_length_ratio=0.0, max_length_constant=6, **settings
    )


def frequencies(logits, settings, size=200_000):
    uniforms = torch.rand(1, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ids = draw(logits.expand(1, 1, -1), uniforms, config=settings)
    return torch.bincount(ids.flatten(), minlength=len(logits)) / size


@pytest.mark.parametrize(
    ("settings", "allowed", "temperature"),
    [
        ({}, [0, 1, 2, 3], 1.0),
        ({"temperature": 0.5}, [0, 1, 2, 3], 0.5),
        ({"top_k": 2}, [1, 3], 1.0),
        ({"top_p": 0.75}, [1, 3], 1.0),  # 0.5 < 0.75 <= 0.5 + 0.3
        ({"top_p": 0.5}, [1], 1.0),
        ({"top_k": 3, "top_p": 0.99}, [0, 1, 3], 1.0),
        ({"temperature": 2.0, "top_k": 1}, [1], 2.0),
    ],
)
def test_draws_follow_the_restricted_distribution(settings, allowed, temperature):
    probabilities = torch.tensor([0.15, 0.5, 0.05, 0.3], dtype=torch.float64)
    expected = torch.zeros(4, dtype=torch.float64)
    expected[allowed] = probabilities[allowed] ** (1 / temperature)
    expected /= expected.sum()
    found = frequencies(probabilities.log(), config(**settings))
    # 5 standard errors of a frequency over 200,000 draws
    assert torch.allclose(found.double(), expected, atol=5 * 0.5 / 200_000**0.5)
    assert (found[expected == 0] == 0).all()


def test_a_line_has_the_same_samples_in_every_batch(prefix_model):
    model, settings = prefix_model(9), config(n_best=3, seed=5)
    together = search(model, SOURCE, None, config=settings, lines=[10, 11, 12, 13])
    shuffled = search(model, SOURCE[[2, 0]], None, config=settings, lines=[12, 10])
    assert shuffled == [together[2], together[0]]


def test_another_seed_or_line_gives_other_samples(prefix_model):
    model = prefix_model(9)
    first = search(model, SOURCE[:1], None, config=config(seed=1), lines=[0])
    assert first != search(model, SOURCE[:1], None, config=config(seed=2), lines=[0])
    assert first != search(model, SOURCE[:1], None, config=config(seed=1), lines=[1])


def test_samples_carry_the_models_own_log_probability(prefix_model):
    model, settings = prefix_model(9), config(n_best=4, temperature=0.7, top_k=5)
    for source, found in zip(
        SOURCE.tolist(), search(model, SOURCE, None, config=settings), strict=True
    ):
        for hypothesis in found:
            tokens = hypothesis.tokens
            total = sum(
                float(model.logits(tuple(source), tuple(tokens[:t])).log_softmax(0)[token])
                for t, token in enumerate([*tokens, 0])
            )
            assert hypothesis.log_probability == pytest.approx(total, abs=1e-5)
            assert hypothesis.score == pytest.approx(total / (len(tokens) + 1), abs=1e-5)
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)


def test_cold_sampling_is_greedy(prefix_model):
    model = prefix_model(9)
    cold = search(model, SOURCE, None, config=config(temperature=1e-6))
    beam = DecodingConfig(beam_size=1, max_length_ratio=0.0, max_length_constant=6)
    assert [h[0].tokens for h in cold] == [
        h[0].tokens for h in search(model, SOURCE, None, config=beam)
    ]
