"""A run folder stands alone: measured where its text never was, resumed where its files were moved."""

import hashlib
import json
import os
import shutil

import pytest

from deepnet.data import fingerprint
from deepnet.record import read_jsonl
from deepnet.seal import file_sha256

MODEL = '[model]\narchitecture = "{kind}"\n{layers}d_model = 16\nffn_dim = 32\nnum_heads = 2\n'
LAYERS = {
    "decoder_only": "encoder_layers = 0\ndecoder_layers = 2\n",
    "encoder_only": "encoder_layers = 2\ndecoder_layers = 0\n",
}
AGO = 10**9
"""A time of change far in the past, in seconds: a file that was written just now is always hashed."""


@pytest.fixture
def place(corpus, tmp_path):
    """Return a folder with text, recipe.toml and an empty cache of its own."""
    for name in ("text.de", "text.en", "recipe.toml"):
        shutil.copy(corpus / name, tmp_path)
    for name in ("text.de", "text.en"):
        os.utime(tmp_path / name, (AGO, AGO))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(recipe.read_text().replace(str(corpus), str(tmp_path)))
    return tmp_path


@pytest.fixture
def train(cli, place):
    """Return a function (name of the run, *arguments) -> its folder, trained for 4 updates."""

    def run(name, *arguments, recipe="recipe.toml", steps=4):
        out = place / name
        command = ["train", place / recipe, "--out", out, "--cache", place / "cache"]
        limits = (f"training.max_steps={steps}", "training.log_every=1")
        result = cli(*command, *limits, *arguments)
        assert result.code == 0, result.err
        return out

    return run


@pytest.fixture
def resume(cli, place):
    """Return a function (run, *arguments) -> what going on with it to 6 updates said."""

    def run(out, *arguments):
        options = ["--out", out, "--resume", "--cache", place / "cache", "training.max_steps=6"]
        return cli("train", out, *options, *arguments)

    return run


def elsewhere(run, place):
    """Copy a run to another place and take text and cache away; return the copy and an empty cache."""
    copy = place / "another machine" / run.name
    shutil.copytree(run, copy)
    shutil.rmtree(place / "cache")
    for text in place.glob("text*"):
        text.unlink()
    return copy, place / "another machine" / "cache"


def losses(run):
    return {row["step"]: row["loss"] for row in read_jsonl(run / "metrics.jsonl") if "loss" in row}


def measured(cli, verb, run, cache, *options):
    result = cli(verb, run, *options, "--json", "--cache", cache)
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_everything_but_training_works_on_a_machine_without_the_text(cli, place, train):
    run, cache = train("run"), place / "cache"
    expected = {
        part: measured(cli, "evaluate", run, cache, "--part", part) for part in ("valid", "test")
    }
    probed = measured(cli, "probe", run, cache)
    copy, cache = elsewhere(run, place)
    for part, scores in expected.items():
        found = measured(cli, "evaluate", copy, cache, "--part", part)
        assert {**found, "seconds": 0} == {**scores, "seconds": 0}
    found = measured(cli, "probe", copy, cache)
    assert found["loss"] == probed["loss"]
    assert found["readings"] == probed["readings"]
    assert cli("translate", copy, stdin=b"der hund .\n").code == 0
    assert cli("report", copy).code == 0
    texts = [folder / "outputs" / "test.translation.txt" for folder in (run, copy)]
    reference = copy / "outputs" / "test.reference.txt"
    assert cli("compare", *texts, "--reference", reference, "--samples", 10).code == 0
    assert cli("average", copy, "--last", 1, "--cache", cache).code == 0
    shutil.rmtree(copy / "bundle")
    again = ("average", copy, "--last", 1, "--out", copy / "bundle", "--cache", cache)
    assert cli(*again).code == 0
    assert not cache.exists()


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("scheme", ["deepnorm", "admin"])
def test_so_does_a_model_of_one_text(cli, place, train, kind, scheme):
    text = (place / "text.de").as_posix()
    (place / "one.toml").write_text(
        f'[data]\ntrain_text = "{text}"\n[tokenizer]\nvocab_size = 24\nbyte_fallback = false\n'
        + MODEL.format(kind=kind, layers=LAYERS[kind])
        + f'[scheme]\nname = "{scheme}"\n[training]\nmax_steps = 2\n'
    )
    run = train("run", recipe="one.toml")
    scores = json.loads((run / "outputs" / "test.scores.json").read_text())
    probed = measured(cli, "probe", run, place / "cache")
    copy, cache = elsewhere(run, place)
    found = measured(cli, "evaluate", copy, cache)
    assert {**found, "seconds": 0} == {**scores, "seconds": 0}
    valid = measured(cli, "evaluate", copy, cache, "--part", "valid")
    last = read_jsonl(run / "metrics.jsonl")[-1]
    assert valid["loss"] == pytest.approx(last["validation_loss"], rel=1e-5)
    found = measured(cli, "probe", copy, cache)
    assert found["loss"] == probed["loss"]
    assert found["readings"]["model_update"]["output"] == pytest.approx(
        probed["readings"]["model_update"]["output"], rel=1e-4
    )


def test_one_text_is_evaluated_alone_and_with_nothing_to_decode(cli, place, train):
    text = (place / "text.de").as_posix()
    (place / "one.toml").write_text(
        f'[data]\ntrain_text = "{text}"\n[tokenizer]\nvocab_size = 24\nbyte_fallback = false\n'
        + MODEL.format(kind="decoder_only", layers=LAYERS["decoder_only"])
        + "[training]\nmax_steps = 2\n"
    )
    run, cache = train("run", recipe="one.toml"), place / "cache"
    shown = cli("evaluate", run, "--part", "valid", "--cache", cache).out
    assert "perplexity" in shown
    assert "12 valid lines" in shown
    for more in ([run], ["decoding.beam_size=2"], ["--tokenized"]):
        refused = cli("evaluate", run, *more, "--cache", cache)
        assert refused.code == 2, more
        assert len(refused.err.splitlines()) == 1


def test_where_the_first_weights_are_unknown_the_rest_is_measured(cli, place, train):
    """Of a fine-tuned run, whose first weights are those of another one that did not come along."""
    first = train("first")
    run = train("tuned", "--from", first, "probes.every=0")
    probed = measured(cli, "probe", run, place / "cache")
    copy, cache = elsewhere(run, place)
    shutil.rmtree(first)
    found = measured(cli, "probe", copy, cache)
    left_out = {"model_update", "predicted_update"}
    assert probed["readings"].keys() - found["readings"].keys() == left_out
    assert found["readings"].items() <= probed["readings"].items()
    shown = cli("probe", copy, "--cache", cache)
    assert "the model update is left out" in shown.out
    assert str(first) in shown.out


def test_a_fine_tuned_run_goes_on_without_the_run_it_came_from(cli, place, train, resume):
    first = train("first")
    whole, run = train("whole", "--from", first, steps=6), train("run", "--from", first)
    (first / "bundle" / "tokenizer.model").write_bytes(b"another one's")
    assert resume(run).code == 0
    assert losses(run) == losses(whole)
    shutil.rmtree(first)
    shutil.rmtree(place / "cache")
    shutil.rmtree(run / "checkpoints" / "step_00000006")
    assert resume(run).code == 0  # prepared again, under the vocabulary that the run has kept
    assert losses(run) == losses(whole)


def test_moved_and_renamed_files_do_not_stop_a_run(place, train, resume):
    whole, run = train("whole", steps=6), train("run")
    for side in ("de", "en"):
        (place / f"text.{side}").rename(place / f"renamed.{side}")
    result = resume(run)
    assert result.code == 0, result.err
    assert losses(run) == losses(whole)


def test_nor_does_saying_where_they_are_now(cli, place, train):
    whole, run = train("whole", steps=6), train("run")
    for side in ("de", "en"):
        (place / f"text.{side}").rename(place / f"renamed.{side}")
    shutil.rmtree(place / "cache")
    now = [
        f"data.train_{name}={place}/renamed.{side}"
        for name, side in (("source", "de"), ("target", "en"))
    ]
    command = ["train", run, "--out", run, "--resume", "--cache", place / "cache"]
    for steps in (5, 6):  # and the run remembers it
        result = cli(*command, f"training.max_steps={steps}", *now)
        assert result.code == 0, result.err
        shutil.rmtree(place / "cache")
        now = []
    assert losses(run) == losses(whole)


def test_a_run_prepares_again_where_only_the_files_are_left(place, train, resume):
    whole, run = train("whole", steps=6), train("run")
    shutil.rmtree(place / "cache")
    result = resume(run)
    assert result.code == 0, result.err
    assert "preparing data" in result.out
    assert losses(run) == losses(whole)


def test_a_run_without_prepared_data_and_files_says_what_it_needs(place, train, resume):
    run = train("run")
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    prepared = next((place / "cache").glob("text.de-*")).name
    shutil.rmtree(place / "cache")
    (place / "text.de").unlink()
    result = resume(run)
    assert result.code == 1
    [line] = result.err.splitlines()
    for part in (prepared, str(place / "cache"), str(place / "text.de"), "--cache", "data."):
        assert part in line
    after = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    assert after == before


@pytest.mark.parametrize("keep_cache", [True, False])
def test_changed_files_are_noticed_before_anything_is_prepared(place, train, resume, keep_cache):
    run = train("run")
    if not keep_cache:
        shutil.rmtree(place / "cache")
    text = (place / "text.de").read_text()
    (place / "text.de").write_text(text.replace("hund", "dund"))  # as long as before
    result = resume(run)
    assert result.code == 2
    [line] = result.err.splitlines()
    assert str(place / "text.de") in line
    assert "has changed" in line
    assert "preparing data" not in result.out


def test_files_are_hashed_when_size_or_time_differ_and_only_then(
    cli, place, train, resume, monkeypatch
):
    run, hashed = train("run"), []
    monkeypatch.setattr(
        fingerprint, "file_sha256", lambda file: hashed.append(str(file)) or file_sha256(file)
    )
    assert resume(run).code == 0
    train("another")
    assert hashed == []
    os.utime(place / "text.de", (AGO + 1, AGO + 1))
    train("third")
    assert hashed == [str(place / "text.de")]
    train("fourth")
    assert len(hashed) == 1


def test_a_run_from_before_goes_on_as_before_and_keeps_its_text_from_then_on(
    cli, place, train, resume
):
    whole, run = train("whole", steps=6), train("run")
    shutil.rmtree(run / "data")
    assert measured(cli, "evaluate", run, place / "cache")["sentences"] == 12
    assert measured(cli, "probe", run, place / "cache")["steps"] == [4]
    assert not (run / "data").exists()
    result = resume(run, f"data.train_source={place}/text.en")
    assert result.code == 2
    assert "'data.train_source' was" in result.err
    assert resume(run).code == 0
    assert losses(run) == losses(whole)
    assert (run / "data" / "preparation.json").exists()


def test_what_a_run_keeps(place, train):
    run = train("run")
    [prepared] = (place / "cache").glob("text.de-*")
    kept = {path.name for path in (run / "data").iterdir()}
    texts = {f"{part}.{side}" for part in ("valid", "test") for side in ("de", "en")}
    assert kept == texts | {"tokenizer.model", "preparation.json"}
    for name in texts | {"tokenizer.model"}:
        assert (run / "data" / name).read_bytes() == (prepared / name).read_bytes()
    summary = json.loads((run / "data" / "preparation.json").read_text())
    assert summary["prepared"] == prepared.name
    content = hashlib.sha256((place / "text.en").read_bytes()).hexdigest()
    assert summary["inputs"]["train_target"] == {
        "path": str(place / "text.en"), "sha256": content
    }  # fmt: skip


def test_the_licence_of_a_corpus_is_shown_again_where_a_run_goes_on(place, train, resume):
    recipe = (place / "recipe.toml").read_text()
    _, *rest = recipe.split("\n[tokenizer]\n")
    (place / "corpus.toml").write_text(
        '[data]\ncorpus = "home-assistant"\nsource_language = "fy"\ntarget_language = "nl"\n'
        "max_sentence_tokens = 200\n[tokenizer]\n"
        + rest[0].replace("vocab_size = 36", "vocab_size = 400")
    )
    run = train("run", recipe="corpus.toml", steps=1)
    shown = resume(run, "training.max_steps=2")
    assert shown.code == 0, shown.err
    assert "Apache-2.0" in shown.out
