"""`deepnet prune`: what each number of layers is worth, the bundle that it writes, and what it refuses."""

import json

import pytest

from deepnet.bundle import load_bundle
from deepnet.record import read_jsonl


@pytest.fixture(scope="module")
def deep(train, tmp_path_factory):
    """Return a finished run of 4 + 3 layers."""
    run = tmp_path_factory.mktemp("deep") / "run"
    depth = ("model.encoder_layers=4", "model.decoder_layers=3")
    result = train(run, *depth, "training.max_steps=20", "validation.bleu_sentences=5")
    assert result.code == 0, result.err
    return run


def test_what_layers_are_worth(cli, cache, deep, tmp_path):
    picture = tmp_path / "pruned.png"
    options = ("--layers-kept", "3,5", "--bleu", "--picture", picture, "--json")
    result = cli("prune", deep, *options, "--cache", cache)
    assert result.code == 0, result.err
    found = json.loads(result.out)
    rows = found["rows"]
    assert [row["layers"] for row in rows] == [7, 5, 3]
    assert [len(row["dropped"]) for row in rows] == [0, 2, 4]
    validated = [r["validation_loss"] for r in read_jsonl(deep / "metrics.jsonl")]
    assert rows[0]["loss"] == pytest.approx(min(validated), abs=1e-5)
    assert all(0.0 <= row["bleu"] <= 100.0 for row in rows)
    similar = found["similarities"]
    assert set(similar) == {"encoder.2", "encoder.3", "encoder.4", "decoder.2", "decoder.3"}
    assert rows[2]["dropped"] == sorted(similar, key=similar.get, reverse=True)[:4]
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_a_pruned_bundle_translates(cli, cache, deep, tmp_path):
    out = tmp_path / "pruned"
    result = cli("prune", deep, "--layers-kept", 5, "--out", out, "--cache", cache)
    assert result.code == 0, result.err
    assert f"{out}: 5 layers" in result.out
    bundle = load_bundle(out)
    config = bundle.model.config
    assert config.encoder_layers + config.decoder_layers == 5
    assert len(bundle.config.training["pruned"]["dropped"]) == 2
    result = cli("translate", out, stdin=b"der hund .\n")
    assert result.code == 0, result.err
    assert len(result.out.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--layers-kept", "7"], "layers_kept is 7, and the model has 7 layers"),
        (["--layers-kept", "1"], "layers_kept is 1; expected at least 2"),
        (["--layers-kept", "a few"], "--layers-kept is 'a few'; expected whole numbers"),
        (["--layers-kept", ""], "names no number"),
        (["--layers-kept", "5,3", "--out", "{out}"], "can hold one model"),
    ],
)
def test_what_cannot_be_pruned(cli, cache, deep, tmp_path, options, words):
    out = tmp_path / "pruned"
    result = cli("prune", deep, *(o.format(out=out) for o in options), "--cache", cache)
    assert result.code == 2, result.err
    assert words in result.err
    assert len(result.err.splitlines()) == 1
    assert not out.exists()


def test_a_bundle_by_itself_has_no_text(cli, cache, deep, tmp_path):
    grown = tmp_path / "grown"
    result = cli("grow", deep, "--encoder-layers", 8, "--out", grown, "--cache", cache)
    assert result.code == 0, result.err
    result = cli("prune", grown, "--layers-kept", 5)
    assert result.code == 2
    assert "is a bundle by itself" in result.err
