"""The proxy of a recipe: the same depth, scheme and optimiser, and the schedule's ratios in fewer updates."""

import pytest

from deepnet.doctor.proxy import TOKENS, WIDTH, compressed, narrowed, proxy_recipe, run_length
from deepnet.pipeline.recipe import parse_recipe
from deepnet.training.config import OptimizerConfig, ScheduleConfig
from deepnet.training.optimization.schedules import learning_rate
from deepnet.transformer.models import TransformerConfig

PLAIN = OptimizerConfig(betas=(0.9, 0.9))  # looks back on 10 updates


@pytest.mark.parametrize("name", ["inverse_sqrt", "linear", "cosine", "constant"])
def test_a_part_of_the_run_has_the_rate_of_the_same_part_of_the_trial(name):
    """200 updates stand for 20,000, so that each is a hundred."""
    schedule = ScheduleConfig(name=name, warmup_steps=4000, min_lr=1e-5)
    whole = schedule.model_copy(update={"decay_steps": 20_000 * (name in ("linear", "cosine"))})
    pressed = compressed(schedule, run=20_000, steps=200, optimizer=PLAIN)
    assert pressed.warmup_steps == 40
    for step in (0, 10, 39, 40, 80, 199):
        expected = learning_rate(100 * step, peak=1e-3, config=whole)
        assert learning_rate(step, peak=1e-3, config=pressed) == pytest.approx(expected, rel=1e-6)


def test_a_curve_that_ends_before_the_run_keeps_its_part_of_it():
    schedule = ScheduleConfig(name="linear", warmup_steps=1000, decay_steps=5000)
    pressed = compressed(schedule, run=10_000, steps=200, optimizer=PLAIN)
    assert (pressed.warmup_steps, pressed.decay_steps) == (20, 100)


@pytest.mark.parametrize(
    ("warmup", "beta", "expected"),
    [
        (4000, 0.98, 50),  # 8 by its share; Adam looks back on 50
        (4000, 0.999, 100),  # at most half of the trial
        (30, 0.98, 30),  # never longer than in the run
        (0, 0.98, 0),
        (50_000, 0.98, 100),
    ],
)
def test_a_warmup_is_not_pressed_below_what_the_optimiser_looks_back_on(warmup, beta, expected):
    schedule = ScheduleConfig(warmup_steps=warmup)
    optimizer = OptimizerConfig(betas=(0.9, beta))
    pressed = compressed(schedule, run=100_000, steps=200, optimizer=optimizer)
    assert pressed.warmup_steps == expected


def test_a_run_that_is_no_longer_than_the_trial_is_as_it_is():
    schedule = ScheduleConfig(name="linear", warmup_steps=10)
    pressed = compressed(schedule, run=30, steps=30, optimizer=PLAIN)
    assert (pressed.warmup_steps, pressed.decay_steps) == (10, 30)


def test_a_run_that_ends_by_the_clock_lasts_until_its_decay_or_ten_warmups():
    assert run_length(ScheduleConfig(warmup_steps=400), updates=None) == 4000
    timed = ScheduleConfig(name="linear", warmup_steps=400, decay_steps=900)
    assert run_length(timed, updates=None) == 900
    assert run_length(timed, updates=700) == 700


@pytest.mark.parametrize(
    ("d_model", "heads", "groups"),
    [(512, 8, 0), (768, 12, 4), (1024, 16, 2), (96, 3, 0), (60, 6, 0)],
)
def test_a_narrowed_shape_is_one_that_can_be_built(d_model, heads, groups):
    shape = TransformerConfig(
        d_model=d_model, ffn_dim=4 * d_model, num_heads=heads, num_kv_heads=groups,
        positions="rotary", encoder_layers=7, decoder_layers=9, dropout=0.4,
    )  # fmt: skip
    found = narrowed(shape, width=WIDTH)
    again = TransformerConfig(**found.model_dump())  # checks that everything goes together
    assert (again.d_model, again.ffn_dim) == (min(d_model, 64), 4 * min(d_model, 64))
    assert (again.encoder_layers, again.decoder_layers, again.dropout) == (7, 9, 0.0)
    assert bool(again.num_kv_heads) == bool(groups)


def test_what_decides_whether_a_recipe_trains_stays():
    recipe = parse_recipe(
        {
            "data": {"train_source": "a.de", "train_target": "a.en"},
            "model": {"encoder_layers": 50, "decoder_layers": 40},
            "batching": {"max_tokens": 4096, "micro_batches_per_update": 128},
            "scheme": {"name": "admin"},
            "training": {"max_steps": 100_000},
        }
    )
    proxy = proxy_recipe(recipe, longest=90)
    assert (proxy.model.encoder_layers, proxy.model.decoder_layers) == (50, 40)
    assert (proxy.batching.max_tokens, proxy.batching.micro_batches_per_update) == (TOKENS, 1)
    for section in ("data", "tokenizer", "scheme", "optimizer", "schedule", "ends", "training"):
        assert getattr(proxy, section) == getattr(recipe, section)
    assert proxy_recipe(recipe, longest=700).batching.max_tokens == 700
