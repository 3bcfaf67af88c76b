"""One choice of how BLEU splits text goes through training, bundle, evaluation, comparison and report."""

import json
import random
import shutil

import pytest
from sacrebleu.metrics.bleu import BLEU

from deepnet.bundle import read_bundle_config
from deepnet.evaluation.scores import corpus_scores
from deepnet.pipeline import validating
from deepnet.record import RunFolder
from deepnet.report.folder import RunReader
from deepnet.report.lines import training_charts
from deepnet.report.summary import summary_of
from deepnet.seal import SUMS_FILE

WORDS = {
    "hund": "狗",
    "katze": "猫",
    "mann": "男人",
    "sieht": "看见",
    "liebt": "喜欢",
    "haus": "房子",
}


@pytest.fixture(scope="session")
def chinese(corpus, tmp_path_factory):
    """A recipe of a toy corpus with Chinese on the target side, written without spaces."""
    folder, draw = tmp_path_factory.mktemp("chinese"), random.Random(1)
    lines = [draw.choices(list(WORDS), k=draw.randint(2, 7)) for _ in range(260)]
    (folder / "text.de").write_text("".join(f"{' '.join(line)} .\n" for line in lines))
    (folder / "text.zh").write_text(
        "".join(f"{''.join(WORDS[word] for word in line)}。\n" for line in lines)
    )
    recipe = (corpus / "recipe.toml").read_text().replace(str(corpus / "text.en"), "{target}")
    recipe = recipe.replace(str(corpus), str(folder)).replace("{target}", str(folder / "text.zh"))
    recipe = recipe.replace('target_language = "en"', 'target_language = "zh"')
    recipe = recipe.replace("vocab_size = 36", "vocab_size = 60")
    (folder / "recipe.toml").write_text(f"{recipe}\n[validation]\nbleu = true\n")
    return folder


@pytest.fixture(scope="session")
def trained(chinese, cache, cli):
    """The run folder of 30 updates, with what the command printed beside it."""
    run = chinese / "run"
    result = cli("train", chinese / "recipe.toml", "--out", run, "--cache", cache)
    assert result.code == 0, result.err
    (chinese / "run.out").write_text(result.out)
    return run


@pytest.fixture
def copied(trained, tmp_path):
    """A copy of the run, to go on with."""
    return shutil.copytree(trained, tmp_path / "run")


def _scores(run):
    return json.loads((run / "outputs" / "test.scores.json").read_text())


def test_training_says_and_records_how_its_bleus_are_computed(trained):
    said = (trained.parent / "run.out").read_text()
    assert "validation BLEU: nrefs:1|case:mixed|eff:no|tok:zh|smooth:exp" in said.replace("\n", "")
    assert RunFolder(trained).read_recipe()["bleu_tokenization"] == "zh"
    assert read_bundle_config(trained / "bundle").training["bleu_tokenization"] == "zh"
    assert "tok:zh" in _scores(trained)["signature"]["bleu"]


def test_the_test_part_is_scored_in_it(trained):
    hypotheses, references = (
        (trained / "outputs" / f"test.{name}.txt").read_text().splitlines()
        for name in ("translation", "reference")
    )
    found = BLEU(tokenize="zh").corpus_score(hypotheses, [references]).score
    assert _scores(trained)["bleu"] == pytest.approx(found)


def test_evaluate_takes_the_choice_of_the_run_and_another_openly(trained, cli, chinese, cache):
    files = ("--source", chinese / "text.de", "--reference", chinese / "text.zh", "--json")
    for model in (trained, trained / "bundle"):
        result = cli("evaluate", model, *files, "--cache", cache)
        assert "tok:zh|" in json.loads(result.out)["signature"]["bleu"], result.err
    result = cli("evaluate", trained, *files, "--bleu-tokenization", "char")
    assert "tok:char|" in json.loads(result.out)["signature"]["bleu"]
    result = cli("evaluate", trained, *files, "--bleu-tokenization", "hz")
    assert (result.code, "no BLEU tokenisation 'hz'" in result.err) == (2, True)


def test_a_bundle_from_before_there_was_a_choice_goes_by_its_language(copied, cli, chinese):
    config = json.loads((copied / "bundle" / "config.json").read_text())
    del config["training"]["bleu_tokenization"]
    (copied / "bundle" / "config.json").write_text(json.dumps(config))
    (copied / "bundle" / SUMS_FILE).unlink()
    files = ("--source", chinese / "text.de", "--reference", chinese / "text.zh", "--json")
    assert "tok:zh|" in cli("evaluate", copied / "bundle", *files).out


def test_a_resumed_run_keeps_its_choice(copied, cli, chinese, cache):
    command = ("train", chinese / "recipe.toml", "--out", copied, "--cache", cache, "--resume")
    result = cli(*command, "validation.bleu_tokenization=char")
    assert result.code == 2
    assert "the BLEUs of this run are of tokenisation zh" in result.err
    recipe = json.loads((copied / "recipe.json").read_text())
    (copied / "recipe.json").write_text(json.dumps(recipe | {"bleu_tokenization": "char"}))
    assert cli(*command, "training.max_steps=40", "schedule.decay_steps=0").code == 0
    assert "tok:char" in _scores(copied)["signature"]["bleu"]


def test_a_run_from_before_there_was_a_choice_stays_with_13a(copied, cli, chinese, cache):
    recipe = json.loads((copied / "recipe.json").read_text())
    del recipe["bleu_tokenization"]
    (copied / "recipe.json").write_text(json.dumps(recipe))
    command = ("train", chinese / "recipe.toml", "--out", copied, "--cache", cache, "--resume")
    assert cli(*command, "training.max_steps=40").code == 0
    assert "tok:13a" in _scores(copied)["signature"]["bleu"]


def test_a_recipe_says_the_choice_openly(cli, chinese, cache, tmp_path):
    result = cli(
        "train", chinese / "recipe.toml", "--out", tmp_path / "run", "--cache", cache,
        "training.max_steps=10", "validation.bleu_tokenization=char",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert "tok:char" in _scores(tmp_path / "run")["signature"]["bleu"]
    wrong = cli("train", chinese / "recipe.toml", "validation.bleu_tokenization=hz", "--dry-run")
    assert (wrong.code, "bleu_tokenization" in wrong.err) == (2, True)


def test_outputs_scored_in_different_ways_are_not_compared_silently(trained, copied, cli):
    scores = _scores(copied)
    scores["signature"]["bleu"] = scores["signature"]["bleu"].replace("tok:zh", "tok:char")
    (copied / "outputs" / "test.scores.json").write_text(json.dumps(scores))
    files = [run / "outputs" / "test.translation.txt" for run in (trained, copied)]
    command = ("compare", *files, "--reference", trained / "outputs" / "test.reference.txt")
    result = cli(*command, "--samples", 10, "--json")
    assert result.code == 2
    assert f"{files[0]} in zh and {files[1]} in char" in result.err
    result = cli(*command, "--samples", 10, "--json", "--bleu-tokenization", "char")
    assert "tok:char" in json.loads(result.out)[0]["signature"]
    result = cli("compare", files[0], files[0], *command[3:], "--samples", 10, "--json")
    assert "tok:zh" in json.loads(result.out)[0]["signature"]


def test_a_report_shows_how_and_that_two_ways_cannot_be_compared(trained, copied):
    scores = _scores(copied)
    signature = scores["signature"]["bleu"]
    scores["signature"]["bleu"] = signature.replace("tok:zh", "tok:char")
    (copied / "outputs" / "test.scores.json").write_text(json.dumps(scores))
    one, two = (RunReader(run, name=name).read() for run, name in ((trained, "a"), (copied, "b")))
    assert f"({signature})" in summary_of(one)
    (alone,) = (chart for chart in training_charts([one], [[]]) if chart.key == "bleu")
    assert alone.notes == [f"a: {signature}"]
    (both,) = (chart for chart in training_charts([one, two], [[], []]) if chart.key == "bleu")
    assert "cannot be compared" in both.notes[-1]
    (copied / "outputs" / "test.scores.json").unlink()
    assert RunReader(copied, name="b").read().bleu_signature == "tok:zh"


def test_validations_are_scored_in_it(cli, chinese, cache, tmp_path, monkeypatch):
    seen = []

    def scored(hypotheses, references, **options):
        seen.append(options)
        return corpus_scores(hypotheses, references, **options)

    monkeypatch.setattr(validating, "corpus_scores", scored)
    cli(
        "train", chinese / "recipe.toml", "--out", tmp_path / "run", "--cache", cache,
        "training.max_steps=10",
    )  # fmt: skip
    assert seen == [{"tokenization": "zh"}]
