"""[ends] in recipes: what is decided where a recipe is silent, what is recorded, resumed, fine-tuned and refused."""

import json
import math
from pathlib import Path

import pytest

from deepnet.bundle import load_bundle
from deepnet.errors import ConfigError
from deepnet.pipeline.recipe import Recipe, load_recipe, own_ends, planned_ends, with_ends
from deepnet.pipeline.settling import RELATIVE_STEP, settle_ends
from deepnet.record import read_jsonl
from deepnet.schemes.base import Policy
from deepnet.schemes.catalogue import list_schemes, load_scheme
from deepnet.seal import SUMS_FILE
from deepnet.transformer.ends import EndsConfig, choose_ends

GLOROT_ENDS = """
from dataclasses import dataclass, replace
from deepnet.schemes import deepnorm
from deepnet.schemes.base import Init

@dataclass(frozen=True, kw_only=True)
class Scheme(deepnorm.Scheme):
    def ends(self, context):
        draw = Init("xavier_normal", 1.0)
        return replace(super().ends(context), init={"embedding": draw, "vocabulary": draw})
"""


def losses(run: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in read_jsonl(run / "metrics.jsonl")}


def without_ends(folder: Path) -> None:
    """Make a run what it was before there was a choice of ends."""
    for path in [folder / "recipe.json", *folder.glob("checkpoints/*/*.json")]:
        data = json.loads(path.read_text())
        for section in (data, data.get("recipe", {}), data.get("settings", {})):
            section.pop("ends", None)
        path.write_text(json.dumps(data))
    for sums in folder.glob(f"checkpoints/*/{SUMS_FILE}"):
        sums.unlink()


@pytest.fixture
def recipe(corpus: Path):
    """Return a function (overrides) -> the corpus' recipe."""
    return lambda *overrides: load_recipe(corpus / "recipe.toml", overrides)


def settled(recipe: Recipe) -> EndsConfig:
    return settle_ends(recipe, vocab_size=36).ends


def multiplier(recipe: Recipe) -> float | None:
    return settled(recipe).embedding_lr_multiplier


TRANSLATING = [n for n in list_schemes() if "encoder_decoder" in load_scheme(n).architectures]
OWN = EndsConfig(embedding_lr_multiplier=1.0)


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
    assert settled(recipe(f"optimizer.name={name}")) == OWN


def test_beside_muon_embeddings_follow_the_rate_of_adamw_and_not_that_of_the_matrices(
    recipe,
) -> None:
    given = (
        "optimizer.name=muon", "optimizer.lr=1e-3", "optimizer.weight_decay=0.1",
        "optimizer.muon.lr=0.02", "optimizer.muon.adjust_lr=original",
    )  # fmt: skip
    found = settled(recipe(*given))
    multiplier = RELATIVE_STEP * 16**-0.5 / 1e-3
    assert found.embedding_lr_multiplier == pytest.approx(multiplier)
    assert found.embedding_weight_decay_multiplier == pytest.approx(1 / multiplier)


def test_a_scheme_that_fixes_its_rates_keeps_them(recipe) -> None:
    assert settled(recipe("scheme.name=completep")) == OWN


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("tying", ["all", "decoder", "none"])
@pytest.mark.parametrize("scheme", TRANSLATING)
def test_what_is_decided_contradicts_no_scheme(recipe, scheme, tying, optimizer) -> None:
    decay = 0.1 if optimizer == "adamw" else 0.0
    given = recipe(
        f"scheme.name={scheme}", f"model.tie_embeddings={tying}",
        f"optimizer.name={optimizer}", f"optimizer.weight_decay={decay}",
    )  # fmt: skip
    ends = settled(given)
    for context, planned in planned_ends(given):
        chosen = choose_ends(planned, ends, context)
        moved = chosen.policy.get("embedding", Policy())
        before = planned.policy.get("embedding", Policy())
        assert moved.lr * moved.weight_decay == pytest.approx(before.lr * before.weight_decay) or (
            optimizer == "adam" and moved.weight_decay == before.weight_decay
        )
    assert (ends.vocabulary_lr_multiplier is None) == (tying != "none")


def test_a_decoder_s_own_scheme_and_adamw_contradict_nothing(recipe) -> None:
    given = recipe().model_copy(update={"scheme": {"name": "ngpt"}})
    model = given.model.model_copy(update={"architecture": "decoder_only", "encoder_layers": 0})
    adamw = given.optimizer.model_copy(update={"name": "adamw", "weight_decay": 0.1})
    assert settled(given.model_copy(update={"model": model, "optimizer": adamw})) == OWN


def test_a_role_with_a_rate_of_its_own_keeps_it_and_one_drawn_at_zero_is_not_sped_up(
    recipe,
) -> None:
    ends = settled(recipe("scheme.name=r_fixup", "model.tie_embeddings=none"))
    assert ends.vocabulary_lr_multiplier == 1.0
    assert ends.embedding_lr_multiplier == pytest.approx(RELATIVE_STEP / (3e-3 * 4))


def test_a_glorot_draw_has_the_std_of_its_own_fans(recipe, tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "glorot_ends.py").write_text(GLOROT_ENDS)
    found = multiplier(recipe("scheme.name=glorot_ends:Scheme"))
    assert found == pytest.approx(RELATIVE_STEP * math.sqrt(2 / (16 + 36)) / 3e-3)


def test_what_adamw_takes_off_a_row_stays_what_it_was(recipe) -> None:
    ends = settled(recipe("optimizer.name=adamw", "optimizer.weight_decay=0.1"))
    assert ends.embedding_lr_multiplier is not None
    assert ends.embedding_weight_decay_multiplier is not None
    kept = ends.embedding_lr_multiplier * ends.embedding_weight_decay_multiplier
    assert kept == pytest.approx(1.0)


def test_what_a_recipe_says_is_left_alone(recipe) -> None:
    said = recipe("ends.rows=unit", "ends.embedding_lr_multiplier=1.0", "ends.embedding_std=0.3")
    assert settled(said) == said.ends


def test_another_draw_moves_by_the_same_part_of_it(recipe) -> None:
    found = multiplier(recipe("ends.rows=plain", "ends.embedding_std=0.3"))
    assert found == pytest.approx(RELATIVE_STEP * 0.3 / 3e-3)


def test_a_contradiction_is_found_when_the_recipe_is_read(recipe) -> None:
    with pytest.raises(ConfigError, match=r"fixes the rows.*leave out ends.rows"):
        recipe("scheme.name=scale_norm", "ends.rows=plain")
    with pytest.raises(ConfigError, match=r"'ends.vocabulary_std' has no effect"):
        recipe("ends.vocabulary_std=0.1", "ends.vocabulary_lr_multiplier=2.0")
    with pytest.raises(ConfigError, match=r"unknown key 'ends.row'.*rows"):
        recipe("ends.row=unit")


def test_what_was_decided_is_recorded_in_the_run_and_its_bundle(finished) -> None:
    recorded = load_recipe(finished).ends
    assert recorded.embedding_lr_multiplier == pytest.approx(RELATIVE_STEP / (3e-3 * 4))
    assert load_bundle(finished / "bundle").config.ends == recorded


@pytest.mark.parametrize("named_by", ["recipe", "run", "recipe that says it"])
def test_a_run_from_before_goes_on_as_it_began(cli, corpus, cache, tmp_path, named_by) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    recipe, as_it_was = corpus / "recipe.toml", "ends.embedding_lr_multiplier=1.0"
    options = ("schedule.name=constant", "--cache", cache)
    assert cli("train", recipe, *options, as_it_was, "--out", whole).code == 0
    train = ("train", recipe, *options, as_it_was, "training.max_steps=10")
    assert cli(*train, "--out", part).code == 0
    without_ends(part)
    said = [as_it_was] if named_by == "recipe that says it" else []
    given = ("train", part if named_by == "run" else recipe, *options, *said)
    for steps in (20, 30):  # what the first resumption records must not hinder the second
        resumed = cli(*given, f"training.max_steps={steps}", "--out", part, "--resume")
        assert resumed.code == 0, resumed.err
    assert losses(part) == losses(whole)
    assert set(losses(part)) == {10, 20, 30}
    assert load_recipe(part).ends == OWN


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
    outgrown = "outgrow sinusoids"
    assert said in cli(*dry).out
    assert outgrown not in cli(*dry).out
    sinusoids = cli(*dry, "model.positions=sinusoidal").out
    assert said in sinusoids
    assert outgrown in sinusoids
    assert "embeddings learn" not in cli(*dry, "ends.embedding_lr_multiplier=1.0").out


def test_a_vocabulary_that_is_left_out_follows_what_is_said_of_the_embedding(recipe) -> None:
    said = recipe("model.tie_embeddings=none", "ends.embedding_lr_multiplier=30.0")
    for decided in (own_ends(said), settled(said)):
        assert with_ends(said, decided).ends.of("vocabulary", "lr") == 30.0


def test_fine_tuning_keeps_the_rows_of_the_bundle(cli, corpus, cache, tmp_path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    train = ("train", corpus / "recipe.toml", "training.max_steps=4", "--cache", cache)
    assert cli(*train, "ends.rows=unit", "--out", first).code == 0
    assert cli(*train, "--from", first, "--out", second).code == 0
    assert load_bundle(second / "bundle").config.ends == EndsConfig(
        rows="unit", embedding_lr_multiplier=1.0
    )
    refused = cli(*train, "ends.rows=plain", "--from", first, "--out", tmp_path / "third")
    assert refused.code == 2
    assert "'ends.rows.decoder' was 'unit' and is now 'plain'" in refused.err
    assert "[scheme] and [ends]" in refused.err
