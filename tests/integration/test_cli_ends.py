"""[ends] in recipes: what is decided where a recipe is silent, what is recorded, resumed, fine-tuned and refused."""

import json
from pathlib import Path

import pytest

from deepnet.bundle import load_bundle
from deepnet.errors import ConfigError
from deepnet.pipeline.recipe import Recipe, load_recipe
from deepnet.pipeline.settling import RELATIVE_STEP, settle_ends
from deepnet.record import read_jsonl
from deepnet.transformer.ends import EndsConfig


def losses(run: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in read_jsonl(run / "metrics.jsonl")}


def without_ends(folder: Path) -> None:
    """Make a run what it was before there was a choice of ends."""
    for path in [folder / "recipe.json", *folder.glob("checkpoints/*/*.json")]:
        data = json.loads(path.read_text())
        for section in (data, data.get("recipe", {}), data.get("settings", {})):
            section.pop("ends", None)
        path.write_text(json.dumps(data))


@pytest.fixture
def recipe(corpus: Path):
    """Return a function (overrides) -> the corpus' recipe."""
    return lambda *overrides: load_recipe(corpus / "recipe.toml", overrides)


def multiplier(recipe: Recipe) -> float | None:
    return settle_ends(recipe).ends.embedding_lr_multiplier


def test_embeddings_move_by_a_part_of_their_draw_whatever_width_and_rate(recipe) -> None:
    for lr, width in ((1e-3, 16), (5e-4, 16), (1e-3, 64)):
        found = multiplier(recipe(f"optimizer.lr={lr}", f"model.d_model={width}"))
        assert found is not None
        assert found * lr * width**0.5 == pytest.approx(RELATIVE_STEP)


def test_embeddings_are_never_slowed_down(recipe) -> None:
    assert multiplier(recipe("optimizer.lr=0.5")) == 1.0
    assert multiplier(recipe("scheme.name=scale_norm", "optimizer.lr=1e-2")) == 1.0


@pytest.mark.parametrize("name", ["sgd", "lamb", "adafactor"])
def test_another_family_of_optimisers_keeps_the_scheme_s_ends(recipe, name) -> None:
    assert settle_ends(recipe(f"optimizer.name={name}")).ends == EndsConfig()


def test_a_scheme_that_fixes_its_rates_keeps_them(recipe) -> None:
    assert settle_ends(recipe("scheme.name=completep")).ends == EndsConfig()


def test_what_adamw_takes_off_a_row_stays_what_it_was(recipe) -> None:
    ends = settle_ends(recipe("optimizer.name=adamw", "optimizer.weight_decay=0.1")).ends
    assert ends.embedding_lr_multiplier is not None
    assert ends.embedding_weight_decay_multiplier is not None
    kept = ends.embedding_lr_multiplier * ends.embedding_weight_decay_multiplier
    assert kept == pytest.approx(1.0)


def test_what_a_recipe_says_is_left_alone(recipe) -> None:
    for said in ("ends.rows=unit", "ends.embedding_lr_multiplier=1.0", "ends.embedding_std=0.3"):
        assert settle_ends(recipe(said)) == recipe(said)


def test_a_contradiction_is_found_when_the_recipe_is_read(recipe) -> None:
    with pytest.raises(ConfigError, match=r"fixes the rows.*leave out ends.rows"):
        recipe("scheme.name=scale_norm", "ends.rows=plain")
    with pytest.raises(ConfigError, match=r"'ends.vocabulary_std' has no effect"):
        recipe("ends.vocabulary_std=0.1")
    with pytest.raises(ConfigError, match=r"unknown key 'ends.row'.*rows"):
        recipe("ends.row=unit")


def test_what_was_decided_is_recorded_in_the_run_and_its_bundle(finished) -> None:
    recorded = load_recipe(finished).ends
    assert recorded.embedding_lr_multiplier == pytest.approx(RELATIVE_STEP / (3e-3 * 4))
    assert load_bundle(finished / "bundle").config.ends == recorded


@pytest.mark.parametrize("named_by", ["recipe", "run"])
def test_a_run_from_before_goes_on_as_it_began(cli, corpus, cache, tmp_path, named_by) -> None:
    whole, half = tmp_path / "whole", tmp_path / "half"
    train = ("train", corpus / "recipe.toml", "schedule.name=constant", "--cache", cache)
    as_it_was = "ends.embedding_lr_multiplier=1.0"
    assert cli(*train, as_it_was, "training.max_steps=20", "--out", whole).code == 0
    assert cli(*train, as_it_was, "training.max_steps=10", "--out", half).code == 0
    without_ends(half)
    given = (train[0], half if named_by == "run" else train[1], *train[2:])
    assert cli(*given, "training.max_steps=20", "--out", half, "--resume").code == 0
    assert losses(half) == losses(whole)
    assert set(losses(half)) == {10, 20}


def test_a_run_from_before_is_done_again_as_it_was(cli, corpus, cache, tmp_path) -> None:
    old, again = tmp_path / "old", tmp_path / "again"
    train = ("train", corpus / "recipe.toml", "training.max_steps=10", "--cache", cache)
    assert cli(*train, "ends.embedding_lr_multiplier=1.0", "--out", old).code == 0
    without_ends(old)
    assert cli("train", old, "--out", again, "--cache", cache).code == 0
    assert losses(again) == losses(old)


def test_a_run_and_a_dry_run_say_what_was_decided(cli, corpus, cache, finished) -> None:
    said = f"embeddings learn {RELATIVE_STEP / (3e-3 * 4):.3g} times as fast as matrices"
    assert said in (finished.parent / "finished.out").read_text()
    dry = ("train", corpus / "recipe.toml", "--dry-run", "--cache", cache)
    assert said in cli(*dry).out
    assert "embeddings learn" not in cli(*dry, "ends.rows=unit").out


def test_fine_tuning_keeps_the_ends_of_the_bundle(cli, corpus, cache, tmp_path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    train = ("train", corpus / "recipe.toml", "training.max_steps=4", "--cache", cache)
    assert cli(*train, "ends.rows=unit", "--out", first).code == 0
    assert cli(*train, "--from", first, "--out", second).code == 0
    assert load_bundle(second / "bundle").config.ends.rows == "unit"
    refused = cli(*train, "ends.rows=plain", "--from", first, "--out", tmp_path / "third")
    assert refused.code == 2
    assert "'unit_rows.decoder' was True and is now False" in refused.err
