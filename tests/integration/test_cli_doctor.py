"""`deepnet doctor` on a tiny recipe: its JSON, what it shows, what it refuses, and that it writes nothing."""

import json

import pytest

from deepnet.doctor import case, examine_recipe
from deepnet.pipeline.recipe import load_recipe

SHORT = ("training.max_steps=500", "--steps", "40")


@pytest.fixture(scope="module")
def shown(cli, corpus, cache):
    result = cli("doctor", corpus / "recipe.toml", *SHORT, "--cache", cache, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_json_has_verdict_risk_evidence_and_advice(shown):
    assert list(shown)[:4] == ["verdict", "risk", "evidence", "advice"]
    assert shown["verdict"] in ("trains", "at risk", "diverges")
    assert 0 <= shown["risk"] <= 1
    assert len(shown["evidence"]) > 10
    for row in shown["evidence"]:
        assert set(row) == {"what", "value", "limit"}
        assert isinstance(row["what"], str)
        assert row["value"] is None or isinstance(row["value"], int | float)
    assert all(isinstance(text, str) for text in shown["advice"])
    assert shown["trial"] == {
        "updates": 40, "of": 500, "warmup_steps": 10, "d_model": 16, "encoder_layers": 2,
        "decoder_layers": 2, "max_tokens": 256, "optimizer": "adam", "lr": 3e-3, "seed": 1,
    }  # fmt: skip


def test_a_recipe_that_trains_is_said_to_and_again_the_same(cli, corpus, cache, shown):
    assert shown["verdict"] == "trains"
    result = cli("doctor", corpus / "recipe.toml", *SHORT, "--cache", cache)
    lines = result.out.splitlines()
    assert f"trains, risk {shown['risk']:.2f}" in lines
    assert any(line.startswith("evidence") and line.endswith("limit") for line in lines)
    assert any(line.startswith("trial: updates 40, of 500") for line in lines)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--steps", "3"], "a trial of 3 updates shows nothing; expected at least 20"),
        (["training.sed=2"], "unknown key 'training.sed'; did you mean 'seed'?"),
        (["scheme.name=depnorm"], "unknown scheme 'depnorm'; did you mean 'deepnorm'?"),
    ],
)
def test_wrong_use_is_one_line_and_code_2(cli, corpus, cache, options, words):
    result = cli("doctor", corpus / "recipe.toml", *options, "--cache", cache)
    assert result.code == 2
    assert (len(result.err.splitlines()), result.out) == (1, "")
    assert result.err.startswith("error: ")
    assert words in result.err


def test_a_recipe_that_is_not_there_is_one_line_and_code_2(cli, tmp_path):
    result = cli("doctor", tmp_path / "none.toml")
    assert (result.code, len(result.err.splitlines())) == (2, 1)


@pytest.mark.parametrize(("said", "clip_norm"), [((), 1.0), (("training.clip_norm=0",), 0.0)])
def test_it_clips_gradients_where_the_run_would(corpus, cache, monkeypatch, said, clip_norm):
    seen, steps = [], case.take_steps

    def noting(*given, settings, **others):
        seen.append(settings.clip_norm)
        return steps(*given, settings=settings, **others)

    monkeypatch.setattr(case, "take_steps", noting)
    recipe = load_recipe(corpus / "recipe.toml", ("training.max_steps=20", *said))
    examine_recipe(recipe, steps=20, cache=cache)
    assert seen == [clip_norm]
