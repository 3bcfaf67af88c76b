"""Which depths are timed, and what follows for others."""

import pytest

from deepnet.planning.timing import Depths, Seconds, extrapolated, time_updates, timed_depths
from deepnet.schemes.catalogue import load_scheme
from deepnet.transformer.models import Transformer, TransformerConfig


@pytest.mark.parametrize(
    ("depths", "timed"),
    [
        (Depths(100, 12), [(2, 2), (6, 2), (2, 6)]),
        (Depths(4, 2), [(2, 2), (4, 2)]),
        (Depths(0, 24), [(0, 2), (0, 6)]),
        (Depths(1, 2), [(1, 2)]),
    ],
)
def test_each_stack_is_timed_at_two_depths(depths, timed):
    assert timed_depths(depths) == timed


def test_time_grows_by_the_same_for_each_layer_of_a_stack():
    def seconds(encoder: int, decoder: int) -> Seconds:
        return Seconds(0.5 + 0.02 * encoder + 0.05 * decoder, 0.01 + 0.001 * (encoder + decoder))

    for depths in (Depths(100, 12), Depths(3, 50), Depths(0, 24), Depths(2, 1)):
        timed = {one: seconds(*one) for one in timed_depths(depths)}
        assert extrapolated(timed, depths) == pytest.approx(seconds(*depths))


def test_noise_makes_no_layer_faster_than_none():
    timed = {Depths(2, 0): Seconds(1.0, 0.2), Depths(6, 0): Seconds(0.9, 0.3)}
    assert extrapolated(timed, Depths(102, 0)) == pytest.approx((1.0, 0.2 + 0.1 * 25))


def test_updates_are_computed_as_training_computes_them(batch, conditions):
    """Of every depth the same number, the first of which is not timed."""
    made: list[Transformer] = []

    def build(depths: Depths) -> Transformer:
        shape = {"encoder_layers": depths.encoder, "decoder_layers": depths.decoder}
        config = TransformerConfig(d_model=16, ffn_dim=32, num_heads=2, vocab_size=30, **shape)
        made.append(Transformer(config, load_scheme("deepnorm")))
        return made[-1]

    seconds = time_updates(build, Depths(50, 50), batch, conditions=conditions(ema_decay=0.9))
    assert min(seconds) > 0
    assert [len(model.encoder.layers) for model in made] == [2, 6, 2]
    assert all(
        p.grad.abs().sum() > 0 for p in made[0].decoder.layers[-1].sublayers["ffn"].parameters()
    )
