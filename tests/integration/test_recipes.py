"""Every shipped recipe loads, means a corpus there is, and trains: two updates, shrunk, on a toy corpus."""

import math
import random
import shlex
from pathlib import Path

import pytest

import deepnet
from deepnet.bundle import load_bundle
from deepnet.data.corpora import check_languages, find_corpus
from deepnet.data.directions import trained_directions
from deepnet.pipeline.recipe import Recipe, load_recipe
from deepnet.pipeline.recipe_table import read_header
from deepnet.pipeline.run import run_recipe
from deepnet.record import RunFolder, read_jsonl

FOLDER = Path(deepnet.__file__).parent / "recipes"
RECIPES = sorted(FOLDER.glob("*.toml"))
SHRUNK = [
    "data.max_sentence_tokens=64",
    "batching.max_tokens=256",
    "model.encoder_layers=2",
    "model.decoder_layers=2",
    "model.d_model=16",
    "model.ffn_dim=32",
    "model.num_heads=2",
    "tokenizer.vocab_size=400",
    "schedule.warmup_steps=1",
    "training.max_steps=2",
    "training.log_every=1",
    "validation.bleu_sentences=4",
    "decoding.max_length_constant=2",
]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the corpus "toy": two hundred lines of made-up words in three languages."""
    root, draw = tmp_path_factory.mktemp("corpora"), random.Random(1)
    (root / "toy").mkdir()
    for split, lines in {"train": 200, "valid": 10, "test": 10, "test2016": 10}.items():
        for language in ("de", "en", "fr"):
            text = [" ".join(_word(draw) for _ in range(6)) for _ in range(lines)]
            path = root / "toy" / f"{split}.{language}"
            path.write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    return root


def _word(draw: random.Random) -> str:
    return "".join(draw.choices("abcdefgilmnorst", k=draw.randint(2, 7)))


def test_there_are_recipes_for_every_corpus_the_papers_use() -> None:
    named = {load_recipe(path).data.corpus for path in RECIPES}
    papers = {"iwslt14-de-en", "wmt17-en-de", "wmt14-en-fr", "opus-100", "multiun"}
    assert papers | {"multi30k", "tatoeba-en-de", ""} == named


def test_there_is_a_recipe_for_every_architecture() -> None:
    found = {load_recipe(path).model.architecture for path in RECIPES}
    assert found == {"encoder_decoder", "decoder_only", "encoder_only"}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_names_languages_and_splits_its_corpus_has(path: Path) -> None:
    data = load_recipe(path).data
    if data.corpus:
        corpus = find_corpus(data.corpus)
        if data.pairs:
            assert trained_directions(data.pairs, corpus)
        else:
            check_languages(corpus, data.languages)
        assert {data.valid_split, data.test_split} - {""} <= set(corpus.splits)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_says_how_it_is_run_on_what_how_long_and_to_which_score(path: Path) -> None:
    text = path.read_text(encoding="ascii")
    assert all(line.startswith("#") for line in text.partition("\n\n")[0].splitlines())
    header = read_header(text)
    assert list(header) == ["command", "hardware", "time", "expected"]
    [said] = [part for part in text.split("\n#\n") if part.startswith("# command")]
    lines = said.partition("\n\n")[0].splitlines()
    words = [word for line in lines for word in line[1:].split()]
    assert words == " ".join(f"{key} {value}" for key, value in header.items()).split()
    command = shlex.split(header["command"], comments=True)
    verb = command.index("train")
    assert command[verb - 1] == "deepnet"
    assert command[verb + 1] == path.stem
    assert "--out" in command[verb:]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_trains(
    path: Path, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPNET_DATA", str(toy))
    recipe = _shrunk(path, toy)
    run = run_recipe(
        recipe, out=tmp_path / "run", cache=tmp_path / "cache", device="cpu", report=_drop
    )
    records = [r for r in read_jsonl(RunFolder(run.folder).metrics_path) if "loss" in r]
    assert [record["step"] for record in records] == [1, 2]
    assert all(math.isfinite(record["loss"]) for record in records)
    assert math.isfinite(records[-1]["validation_loss"])
    assert load_bundle(run.bundle).config.scheme["name"] == recipe.scheme["name"]
    assert run.scores is not None
    assert run.scores["sentences"] == 10 * len(run.scores.get("directions", [1]))


def _shrunk(path: Path, toy: Path) -> Recipe:
    """Return the recipe with a toy model and corpus, and everything else as it is."""
    recipe = load_recipe(path)
    several = recipe.batching.micro_batches_per_update > 1
    overrides = [*_shrinking(recipe), f"batching.micro_batches_per_update={2 if several else 1}"]
    if recipe.data.corpus:
        return load_recipe(path, [*overrides, "data.corpus=toy"])
    files = [
        f"data.train_{side}={toy / 'toy' / f'train.{language}'}"
        for side, language in (("source", "de"), ("target", "en"))
    ]
    return load_recipe(path, [*overrides, *files])


def _shrinking(recipe: Recipe) -> list[str]:
    """Return what of SHRUNK the recipe has: of one text, one stack, and neither translations nor BLEU."""
    without = {
        "encoder_decoder": (),
        "decoder_only": ("validation.", "decoding.", "model.encoder_layers"),
        "encoder_only": ("validation.", "decoding.", "model.decoder_layers"),
    }
    return [o for o in SHRUNK if not o.startswith(without[recipe.model.architecture])]


def _drop(message: str) -> None:
    """Take the place of a report."""
