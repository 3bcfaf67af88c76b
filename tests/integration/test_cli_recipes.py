"""Recipes by name: found from anywhere, listed, written out; what lies at that path comes first."""

import json
import re
from pathlib import Path

import pytest

import deepnet
from deepnet.errors import ConfigError
from deepnet.pipeline.recipe import find_recipe
from deepnet.pipeline.recipe_table import describe_recipe, recipe_table
from deepnet.pipeline.shipped import list_recipes, shipped_recipe
from deepnet.record import RunFolder

FILES = {path.stem: path for path in (Path(deepnet.__file__).parent / "recipes").iterdir()}
OWN = '[data]\ncorpus = "tatoeba-en-de"\nsource_language = "de"\ntarget_language = "en"\n[training]\nmax_steps = 7\n'


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_every_file_of_the_folder_is_a_recipe_with_a_name():
    assert {path.suffix for path in FILES.values()} == {".toml"}
    assert list_recipes() == sorted(FILES)
    assert {"demo", "own_files"} <= FILES.keys()


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_name_stands_for_its_file(name):
    assert deepnet.load_recipe(name) == deepnet.load_recipe(FILES[name])
    assert deepnet.load_recipe(Path(name)) == deepnet.load_recipe(FILES[name])


def test_the_command_and_python_train_by_name(cli, corpus, cache, tmp_path):
    small = [
        f"data.train_source={corpus / 'text.de'}", f"data.train_target={corpus / 'text.en'}",
        "tokenizer.vocab_size=36", "tokenizer.byte_fallback=false", "batching.max_tokens=256",
        "model.encoder_layers=1", "model.decoder_layers=1", "model.d_model=16", "model.ffn_dim=32",
        "model.num_heads=2", "training.max_steps=2", "schedule.warmup_steps=1",
    ]  # fmt: skip
    prepared = cli("prepare", "own_files", *small, "--cache", cache)
    assert prepared.code == 0, prepared.err
    dry = cli("train", "own_files", *small, "--dry-run", "--cache", cache)
    assert dry.code == 0, dry.err
    result = cli("train", "own_files", *small, "--out", "run", "--cache", cache)
    assert result.code == 0, result.err
    run = deepnet.train("own_files", out="twin", overrides=small, cache=cache)
    assert run.training.step == 2
    first, second = (RunFolder(tmp_path / name).read_recipe() for name in ("run", "twin"))
    assert first == second
    assert first["recipe"]["training"]["patience"] == 8  # own_files' own


def test_a_file_of_that_name_comes_first(tmp_path):
    (tmp_path / "demo").write_text(OWN)
    assert deepnet.load_recipe("demo").training.max_steps == 7
    assert deepnet.load_recipe(shipped_recipe("demo")).data.corpus == "tatoeba-en-de"


def test_a_run_of_that_name_comes_first_but_no_other_folder(tmp_path):
    (tmp_path / "demo").mkdir()
    assert find_recipe("demo") == FILES["demo"]
    described = deepnet.load_recipe("demo", ["training.max_steps=7"]).model_dump(mode="json")
    RunFolder.create(tmp_path / "demo", recipe=described)
    assert deepnet.load_recipe("demo").training.max_steps == 7


def test_a_folder_without_a_run_is_still_named_as_that(tmp_path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(ConfigError, match="mine holds no run"):
        deepnet.load_recipe("mine")


@pytest.mark.parametrize("given", ["own_flies", "own_flies.toml", "recipes/own_flies.toml"])
def test_a_misspelt_name_says_what_was_wrong_and_the_nearest_one(given):
    expected = f"cannot read the recipe {given}: .* did you mean 'own_files'.* 'deepnet recipes'"
    with pytest.raises(ConfigError, match=expected):
        deepnet.load_recipe(given)


def test_the_list_as_json_has_every_file(cli):
    found = json.loads(cli("recipes", "--json").out)
    assert found == recipe_table()
    assert [row["name"] for row in found] == sorted(FILES)
    for row in found:
        recipe = deepnet.load_recipe(FILES[row["name"]])
        size = (recipe.model.encoder_layers, recipe.model.decoder_layers, recipe.model.d_model)
        assert (row["encoder_layers"], row["decoder_layers"], row["d_model"]) == size
        assert row["scheme"] == recipe.residual_scheme().__module__.rpartition(".")[2]
        assert FILES[row["name"]].read_text().startswith(f"# {row['title']}\n")
        assert all(row[key] for key in ("command", "hardware", "time", "expected"))


def test_the_list_as_a_table_has_every_file(cli):
    head, *lines = cli("recipes").out.splitlines()
    assert head.split() == ["recipe", "task", "layers", "width", "time", "expected"]
    assert [line.split()[0] for line in lines[: len(FILES)]] == sorted(FILES)
    shown = {line.split()[0]: line for line in lines}
    cells = re.split("  +", shown["next_token_en"].strip())
    assert cells[1:4] == ["next token: tatoeba-en-de, en", "18", "96"]
    cells = re.split("  +", shown["own_files"].strip())
    assert cells[1:4] == ["translation: files of your own", "12 + 12", "96"]
    assert cells[5] == "depends on the text"


@pytest.mark.parametrize("name", sorted(FILES))
def test_what_is_written_out_is_the_file(cli, name):
    assert cli("recipes", name).out.encode() == FILES[name].read_bytes()
    found = json.loads(cli("recipes", name, "--json").out)
    assert found == {**describe_recipe(name), "text": FILES[name].read_bytes().decode()}


def test_continued_lines_of_a_header_are_one_text():
    found = describe_recipe("wmt17_en_de_deepnet")
    assert found["time"] == "not measured here"
    assert found["expected"].endswith("29.3, cased tokenised BLEU of multi-bleu.perl")
    assert found["expected"].count("per stack. Re-run by the BranchNorm paper") == 1
