"""One tiny model of three languages, from the recipe to `translate --to`: the real command on forty made-up lines."""

import json
import math
import random
import shutil

import pytest

from deepnet.bundle import load_bundle
from deepnet.data.directions import Direction
from deepnet.data.prepare import open_prepared
from deepnet.decoding.interface import DecodingConfig
from deepnet.decoding.translate import Translator, score, translate, translations
from deepnet.errors import ConfigError
from deepnet.pipeline.direction_scores import averages
from deepnet.pipeline.preparing import held_out_batches
from deepnet.pipeline.recipe import load_recipe

LANGUAGES = {"de": "us", "en": "", "fr": "ez"}
RECIPE = """
[data]
corpus = "toy"
pairs = ["*-en", "en-*"]
zero_shot_pairs = "all"
language_tag = "{tag}"
max_sentence_tokens = 60
[tokenizer]
vocab_size = 44
byte_fallback = false
[batching]
max_tokens = 256
[model]
encoder_layers = 2
decoder_layers = 2
d_model = 16
ffn_dim = 32
num_heads = 2
[optimizer]
lr = 3e-3
[schedule]
warmup_steps = 10
[training]
max_steps = 24
validate_every = 12
save_every = 12
log_every = 6
[decoding]
beam_size = 2
max_length_constant = 4
"""
TRAINED = ["de-en", "fr-en", "en-de", "en-fr"]
ZERO_SHOT = ["de-fr", "fr-de"]


@pytest.fixture(scope="module")
def many(tmp_path_factory, cli):
    """Return a function (tag) -> the run folder of a model with tags there, trained once."""
    folder = tmp_path_factory.mktemp("languages")
    (folder / "corpora" / "toy").mkdir(parents=True)
    draw = random.Random(1)
    for split, size in {"train": 40, "valid": 4, "test": 3}.items():
        rows = [draw.choices(range(8), k=draw.randint(3, 6)) for _ in range(size)]
        for language, ending in LANGUAGES.items():
            lines = (
                " ".join(f"{'abcdefgh'[n]}{'klmn'[n % 4]}{ending}" for n in row) for row in rows
            )
            path = folder / "corpora" / "toy" / f"{split}.{language}"
            path.write_text("".join(f"{line}\n" for line in lines))

    def run(tag, *options, name=""):
        path = folder / (name or tag)
        if not path.exists() or options:
            recipe = folder / f"{tag}.toml"
            recipe.write_text(RECIPE.format(tag=tag))
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("DEEPNET_DATA", str(folder / "corpora"))
                command = ("train", recipe, "--out", path, "--cache", folder / "cache")
                result = cli(*command, *options)
            assert result.code == 0, result.err
            (folder / f"{path.name}.out").write_text(result.out)
        return path

    return run


@pytest.fixture(params=["source", "target", "both"])
def finished(request, many):
    return many(request.param)


def test_the_directions_are_shown_before_training_and_their_scores_after_it(many):
    run = many("source")
    said = (run.parent / "source.out").read_text().splitlines()
    head = next(n for n, line in enumerate(said) if line.startswith("direction  "))
    assert [line.split()[0] for line in said[head + 1 : head + 5]] == TRAINED
    assert [line.split()[2] for line in said[head + 1 : head + 5]] == ["25.00%"] * 4
    assert head < next(n for n, line in enumerate(said) if line.startswith("direction  BLEU"))
    assert any("warning: 'fr' has 40 sentences to learn from" in line for line in said)
    assert any(line.startswith("zero-shot ") for line in said)


def test_every_direction_is_scored_and_averaged(finished):
    scores = json.loads((finished / "outputs" / "test.scores.json").read_text())
    assert list(scores["directions"]) == TRAINED + ZERO_SHOT
    assert [one["trained"] for one in scores["directions"].values()] == [True] * 4 + [False] * 2
    into = [scores["directions"][name]["chrf"] for name in ("de-en", "fr-en")]
    assert scores["averages"]["x-en"] == {
        "bleu": pytest.approx(sum(scores["directions"][n]["bleu"] for n in ("de-en", "fr-en")) / 2),
        "chrf": pytest.approx(sum(into) / 2),
        "directions": 2,
    }
    assert scores["averages"]["zero-shot"]["directions"] == 2
    assert scores["sentences"] == 6 * 3
    for name in TRAINED + ZERO_SHOT:
        source = name.partition("-")[0]
        text = (finished / "outputs" / f"test.{name}.source.txt").read_text().split()
        assert all(word[2:] == LANGUAGES[source] for word in text)


def test_evaluate_scores_what_training_scored(finished, cli):
    recorded = json.loads((finished / "outputs" / "test.scores.json").read_text())
    found = json.loads(cli("evaluate", finished, "--json").out)
    for name, one in recorded["directions"].items():
        assert found["directions"][name]["chrf"] == one["chrf"]
    assert found["averages"] == recorded["averages"]


def test_translate_asks_for_the_language(finished, cli):
    name = "en-de"
    lines = (finished / "outputs" / f"test.{name}.source.txt").read_bytes()
    translated = cli("translate", finished, "--to", "de", stdin=lines)
    assert translated.code == 0, translated.err
    assert translated.out == (finished / "outputs" / f"test.{name}.translation.txt").read_text()
    reference = finished / "outputs" / f"test.{name}.reference.txt"
    files = ("--source", finished / "outputs" / f"test.{name}.source.txt", "--reference", reference)
    alone = json.loads(cli("evaluate", finished, *files, "--to", "de", "--json").out)
    recorded = json.loads((finished / "outputs" / "test.scores.json").read_text())
    assert alone["chrf"] == recorded["directions"][name]["chrf"]


def test_search_and_scoring_see_the_tag_alike(finished):
    bundle = load_bundle(finished / "bundle")
    translator = Translator.of(bundle, to="fr")
    source = (finished / "outputs" / "test.en-fr.source.txt").read_text().splitlines()
    config = DecodingConfig(beam_size=1, max_length_constant=4)
    for line, found in zip(source, translations(translator, source, config=config), strict=True):
        ids = found[0].hypothesis.tokens
        if bundle.tokenizers.target.encode([found[0].text]) == [ids]:  # else it is no text's ids
            (scored,) = score(translator, [(line, found[0].text)], config=config)
            assert scored.log_probability == pytest.approx(
                found[0].hypothesis.log_probability, abs=1e-4
            )
    assert list(translate(bundle, ["", " "], config=config, to="fr")) == ["", ""]


def test_another_tag_gives_other_probabilities(finished):
    bundle = load_bundle(finished / "bundle")
    pair = [("ak bl cm dn", "akus blus cmus dnus")]
    config = DecodingConfig(beam_size=1)
    into = {
        to: next(score(Translator.of(bundle, to=to), pair, config=config)).log_probability
        for to in LANGUAGES
    }
    assert len({round(value, 3) for value in into.values()}) == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "translates into de, en, fr; say which: --to de"),
        (("--to", "dee"), "does not translate into 'dee'; did you mean 'de'?"),
        (("--to", "xx"), "does not translate into 'xx'; it has de, en, fr"),
    ],
)
def test_a_language_that_it_lacks_is_one_line(many, cli, options, said):
    result = cli("translate", many("source"), *options, stdin=b"ak bl\n")
    assert result.code == 2
    assert said in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_the_bundle_alone_knows_its_languages_and_where_the_tag_stands(finished):
    known = load_bundle(finished / "bundle").config.languages
    assert known["tag"] == finished.name
    assert [f"{a}-{b}" for a, b in known["directions"]] == TRAINED
    assert [f"{a}-{b}" for a, b in known["zero_shot"]] == ZERO_SHOT


def test_validation_is_over_all_pairs(many):
    run = many("source")
    kept = open_prepared(run / "data")
    batches = held_out_batches(load_recipe(run), kept, "valid")
    assert sum(len(batch.source) for batch in batches) == 4 * 4
    tokens = {
        pair: [side.tokens for side in kept.of_pair(pair).dataset("valid").header.sides]
        for pair in (("de", "en"), ("en", "fr"))
    }
    assert sum(batch.num_tokens for batch in batches) == sum(map(sum, tokens.values()))
    assert all(math.isfinite(one["validation_loss"]) for one in validations(run))


def validations(run):
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    found = [row for row in rows if "validation_loss" in row]
    assert len(found) == 2
    return found


def test_models_of_different_tags_are_no_ensemble(many, cli):
    result = cli("translate", many("source"), many("both"), "--to", "de", stdin=b"ak\n")
    assert result.code == 2
    assert "place their tags elsewhere" in result.err


def test_averages_are_over_directions_by_what_they_are():
    trained = [Direction("de", "en"), Direction("en", "de"), Direction("fr", "en")]
    rows = {"de-en": 10.0, "en-de": 40.0, "fr-en": 30.0, "de-fr": 7.0}
    scores = {name: {"bleu": value, "chrf": 2 * value} for name, value in rows.items()}
    found = averages(trained, [Direction("de", "fr")], scores)
    assert found["x-en"] == {"bleu": 20.0, "chrf": 40.0, "directions": 2}
    assert found["en-x"] == {"bleu": 40.0, "chrf": 80.0, "directions": 1}
    assert found["all"]["bleu"] == pytest.approx(80 / 3)
    assert found["zero-shot"] == {"bleu": 7.0, "chrf": 14.0, "directions": 1}


def test_a_resumed_run_is_the_run_that_never_stopped(many):
    whole = many("source")
    half = many("source", "training.max_steps=12", name="half")
    many("source", "training.max_steps=24", "--resume", name="half")
    for name in ("model.safetensors", "config.json"):
        assert (half / "bundle" / name).read_bytes() == (whole / "bundle" / name).read_bytes()


def test_a_translator_has_its_language(many):
    bundle = load_bundle(many("source") / "bundle")
    with pytest.raises(ConfigError, match=r"give 'fr' to Translator\.of"):
        next(translate(Translator.of(bundle, to="de"), ["ak"], to="fr"))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("validation.bleu=true", "validation.bleu is of one direction"),
        ("tokenizer.shared=false", "share one vocabulary"),
        ("data.source_language=de", "'source_language' has no effect with 'pairs'"),
        ("data.language_tag=front", "data.language_tag"),
        ("data.pairs=xx-en", "no language 'xx'"),
    ],
)
def test_a_recipe_that_cannot_be_is_one_line(many, cli, override, said, monkeypatch):
    folder = many("source").parent
    monkeypatch.setenv("DEEPNET_DATA", str(folder / "corpora"))
    result = cli("train", folder / "source.toml", override, "--dry-run", "--cache", folder / "new")
    assert result.code == 2
    assert said in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_a_dry_run_shows_the_directions(many, cli, monkeypatch):
    folder = many("source").parent
    monkeypatch.setenv("DEEPNET_DATA", str(folder / "corpora"))
    command = ("train", folder / "source.toml", "--dry-run", "--cache", folder / "cache")
    result = cli(*command, "data.sampling_temperature=1")
    assert result.code == 0, result.err
    assert "an epoch: 160 pairs drawn at data.sampling_temperature = 1" in result.out
    assert "25.00%" in result.out


def test_a_resumed_run_keeps_its_temperature(many, cli, monkeypatch):
    run = many("source")
    monkeypatch.setenv("DEEPNET_DATA", str(run.parent / "corpora"))
    command = ("train", run, "--out", run, "--resume", "--cache", run.parent / "cache")
    result = cli(*command, "data.sampling_temperature=1")
    assert result.code == 2
    assert "sampling_temperature" in result.err


def test_the_report_of_a_run_gives_the_mean_over_directions(many, cli, tmp_path):
    run = many("source")
    result = cli("report", run, "--out", tmp_path / "report.html")
    assert result.code == 0, result.err
    scores = json.loads((run / "outputs" / "test.scores.json").read_text())
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"BLEU {scores['averages']['all']['bleu']:.1f}" in page


def test_an_average_of_checkpoints_knows_the_languages_too(many, cli, tmp_path):
    run = many("both")
    assert cli("average", run, "--last", 1, "--out", tmp_path / "one").code == 0
    lines = (run / "outputs" / "test.en-de.source.txt").read_bytes()
    same = [cli("translate", path, "--to", "de", stdin=lines) for path in (run, tmp_path / "one")]
    assert same[0].out == same[1].out != ""
    assert (
        load_bundle(tmp_path / "one").config.languages
        == load_bundle(run / "bundle").config.languages
    )
    files = [run / "outputs" / f"test.en-de.{side}.txt" for side in ("source", "reference")]
    command = ("score", tmp_path / "one", "--source", files[0], "--target", files[1])
    scored = cli(*command, "--to", "de")
    assert len(scored.out.splitlines()) == 3, scored.err
    assert "say which" in cli(*command).err


def test_many_directions_go_on_from_the_weights_of_many(many, cli, monkeypatch):
    run = many("source")
    monkeypatch.setenv("DEEPNET_DATA", str(run.parent / "corpora"))
    command = ("train", run.parent / "source.toml", "--from", run, "--cache", run.parent / "cache")
    result = cli(*command, "training.max_steps=2", "--out", run.parent / "tuned")
    assert result.code == 0, result.err
    tokenizers = [
        (path / "data" / "tokenizer.model").read_bytes() for path in (run, run.parent / "tuned")
    ]
    assert tokenizers[0] == tokenizers[1]


def test_a_bundle_whose_record_of_languages_is_broken_is_one_line(many, cli, tmp_path):
    shutil.copytree(many("source") / "bundle", tmp_path / "odd")
    (tmp_path / "odd" / "SHA256SUMS").unlink()
    path = tmp_path / "odd" / "config.json"
    config = json.loads(path.read_text())
    config["languages"]["directions"] = [["de", "en", "fr"], 3]
    path.write_text(json.dumps(config))
    result = cli("translate", tmp_path / "odd", "--to", "en", stdin=b"ak\n")
    assert result.code != 0
    assert "languages.directions" in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_a_model_of_one_direction_refuses_a_language(cli, train, tmp_path):
    assert train(tmp_path / "one", "training.max_steps=2").code == 0
    result = cli("translate", tmp_path / "one", "--to", "en", stdin=b"der\n")
    assert result.code == 2
    assert "translates into en alone, so there is no choice of 'en'; leave out --to" in result.err
    assert len(result.err.strip().splitlines()) == 1
