"""training.clip_norm in recipes: what a silent one gets, what it gives way to, what a run that goes on keeps."""

from pathlib import Path

import pytest

from deepnet.pipeline.recipe import load_recipe
from deepnet.pipeline.settling import settle_clipping
from deepnet.pipeline.shipped import list_recipes
from deepnet.record import read_jsonl
from deepnet.training.config import TrainingConfig

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MEASURED = [*sorted(BENCHMARKS.glob("*.toml")), BENCHMARKS.parent / "results/own_files/before.toml"]
IN_BACKWARD = ("training.step_in_backward=true", "probes.every=0")


@pytest.fixture
def settled(corpus: Path):
    """Return a function (overrides) -> the norm at which the corpus' recipe is settled to clip."""
    return lambda *overrides: (
        settle_clipping(load_recipe(corpus / "recipe.toml", overrides)).training.clip_norm
    )


def recorded(run: Path) -> float:
    return load_recipe(run).training.clip_norm


def weights(run: Path, step: int) -> bytes:
    return (run / "checkpoints" / f"step_{step:08d}" / "model.safetensors").read_bytes()


def test_a_silent_recipe_is_clipped_at_1_under_adam_and_adamw(settled):
    assert settled() == 1.0
    assert settled("optimizer.name=adamw", "optimizer.weight_decay=0.1") == 1.0


@pytest.mark.parametrize("name", ["next_token_en", "masked_token_de"])
def test_so_is_one_text(name):
    assert settle_clipping(load_recipe(name)).training.clip_norm == 1.0


@pytest.mark.parametrize("said", [0.0, 0.1, 1.0, 5.0])
def test_what_a_recipe_says_stays(settled, said):
    assert settled(f"training.clip_norm={said}") == said


@pytest.mark.parametrize("name", ["sgd", "radam", "lamb", "adafactor", "muon"])
def test_optimizers_that_were_not_measured_have_no_default(settled, name):
    assert settled(f"optimizer.name={name}") == 0.0


def test_nor_has_a_decay_that_a_shorter_gradient_would_outweigh(settled):
    assert settled("optimizer.weight_decay=1e-4") == 0.0


def test_a_section_of_python_code_clips_nothing_unless_it_says_so():
    assert TrainingConfig(max_steps=1).clip_norm == 0.0


@pytest.mark.parametrize("recipe", [*list_recipes(), *MEASURED], ids=lambda one: Path(one).stem)
def test_what_was_measured_or_published_without_clipping_says_so(recipe):
    said = load_recipe(recipe).training.model_fields_set
    not_measured_yet = ("next_token_en", "masked_token_de", "multi30k_many")
    assert ("clip_norm" in said) == (recipe not in not_measured_yet)
    assert load_recipe(recipe).training.clip_norm == 0.0


def test_a_run_says_what_was_decided_and_trains_as_one_that_asks_for_it(train, tmp_path):
    silent, said, never = (tmp_path / name for name in ("silent", "said", "never"))
    first = train(silent, "training.max_steps=10")
    assert "gradients longer than 1 are scaled down to that (training.clip_norm)" in first.out
    assert recorded(silent) == 1.0
    assert read_jsonl(silent / "metrics.jsonl")[0]["gradient_norm"] > 1
    assert "clip_norm" not in train(said, "training.max_steps=10", "training.clip_norm=1").out
    assert train(never, "training.max_steps=10", "training.clip_norm=0").code == 0
    assert weights(silent, 10) == weights(said, 10) != weights(never, 10)


def test_a_run_that_was_begun_with_it_goes_on_with_it_and_is_done_again_with_it(
    cli, train, cache, finished, tmp_path
):
    run = tmp_path / "run"
    assert train(run, "training.max_steps=10").code == 0
    assert train(run, "--resume").code == 0
    assert recorded(run) == 1.0
    assert weights(run, 30) == weights(finished, 30)
    again = cli("train", finished, "--out", tmp_path / "again", "--cache", cache)
    assert "clip_norm" not in again.out
    assert weights(tmp_path / "again", 30) == weights(finished, 30)


def test_a_run_of_before_goes_on_without_clipping_bit_for_bit(train, tmp_path):
    """Its record says 0, as a version without the default wrote for every silent recipe."""
    run, whole = tmp_path / "run", tmp_path / "whole"
    assert train(whole, "training.max_steps=20", "training.clip_norm=0").code == 0
    assert train(run, "training.max_steps=10", "training.clip_norm=0").code == 0
    again = train(run, "training.max_steps=20", "--resume")
    assert (again.code, recorded(run)) == (0, 0.0), again.err
    assert weights(run, 20) == weights(whole, 20)


def test_a_resumed_run_that_asks_otherwise_is_refused(train, tmp_path):
    run = tmp_path / "run"
    assert train(run, "training.max_steps=10").code == 0
    refused = train(run, "training.clip_norm=0", "--resume")
    assert refused.code == 2
    assert "'training.clip_norm' was 1.0 and is now 0.0" in refused.err


def test_fine_tuning_was_not_measured_and_clips_where_it_is_asked_to(train, finished, tmp_path):
    tuned, asked = tmp_path / "tuned", tmp_path / "asked"
    assert train(tuned, "training.max_steps=2", "--from", finished).code == 0
    assert recorded(tuned) == 0.0
    options = ("training.max_steps=2", "training.clip_norm=1.0")
    assert train(asked, *options, "--from", finished).code == 0
    assert recorded(asked) == 1.0


def test_the_default_gives_way_to_steps_in_the_backward_pass_and_says_so(train, tmp_path):
    run = tmp_path / "run"
    result = train(run, *IN_BACKWARD, "training.max_steps=10")
    assert result.code == 0, result.err
    assert "not scaled down to 1, because of training.step_in_backward" in result.out
    assert recorded(run) == 0.0
    plain = train(run, "training.max_steps=12", "probes.every=0", "--resume")
    assert (plain.code, recorded(run)) == (0, 0.0), plain.err


def test_clipping_that_is_asked_for_does_not_give_way(train, tmp_path):
    result = train(tmp_path / "run", *IN_BACKWARD, "training.clip_norm=1")
    assert result.code == 2
    assert "does not go together with training.clip_norm = 1.0" in result.err
