"""model.positions in recipes: what is decided where a recipe is silent, and what a resumed or fine-tuned run keeps."""

from pathlib import Path

import pytest

from deepnet.bundle import load_bundle
from deepnet.pipeline.recipe import load_recipe
from deepnet.pipeline.settling import settle_positions


@pytest.fixture
def settled(corpus: Path):
    """Return a function (overrides) -> the positions that the corpus' recipe is settled with."""
    return lambda *overrides: (
        settle_positions(load_recipe(corpus / "recipe.toml", overrides)).model.positions
    )


def trained_with(run: Path) -> str:
    return load_bundle(run / "bundle").model.config.positions


def test_a_translator_whose_recipe_is_silent_has_rotary_angles(settled):
    assert settled() == "rotary"
    assert settled("scheme.name=pre_ln", "model.encoder_layers=3") == "rotary"


@pytest.mark.parametrize("said", ["sinusoidal", "learned", "alibi"])
def test_what_a_recipe_says_stays(settled, said):
    assert settled(f"model.positions={said}") == said


def test_heads_of_an_odd_size_cannot_be_turned(settled):
    assert settled("model.d_model=18", "model.num_heads=2") == "sinusoidal"


def test_merged_attention_has_no_queries_of_its_own_to_turn(settled):
    assert settled("scheme.name=ds_init", "scheme.merged=true") == "sinusoidal"


@pytest.mark.parametrize("name", ["next_token_en", "masked_token_de"])
def test_one_text_was_not_measured_and_keeps_sinusoids(name):
    assert settle_positions(load_recipe(name)).model.positions == "sinusoidal"


def test_the_papers_recipes_keep_the_papers_positions():
    for paper in ("wmt17_en_de_deepnet", "wmt14_en_fr_branchnorm", "opus100_deepnet"):
        assert settle_positions(load_recipe(paper)).model.positions == "sinusoidal"


def test_a_run_says_what_was_decided_and_is_resumed_with_it(train, tmp_path):
    run = tmp_path / "run"
    first = train(run)
    assert "positions are rotary angles" in first.out
    assert load_recipe(run).model.model_fields_set >= {"positions"}
    assert train(run, "training.max_steps=12", "--resume").code == 0
    assert trained_with(run) == "rotary"


def test_a_run_with_sinusoids_goes_on_with_them(train, tmp_path):
    run = tmp_path / "run"
    assert train(run, "model.positions=sinusoidal").code == 0
    again = train(run, "training.max_steps=12", "--resume")
    assert (again.code, trained_with(run)) == (0, "sinusoidal")


def test_fine_tuning_keeps_the_positions_of_the_bundle(train, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    assert train(first, "model.positions=sinusoidal").code == 0
    assert train(second, "--from", first).code == 0
    assert trained_with(second) == "sinusoidal"
