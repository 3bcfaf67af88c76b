"""`deepnet grow`: a deeper bundle that translates and trains on, what it says of the jump, and what it refuses."""

import json

import pytest

from deepnet.bundle import load_bundle
from deepnet.data.text import read_pairs
from deepnet.record import read_jsonl


@pytest.fixture(scope="module")
def pre_norm(train, tmp_path_factory):
    """Return a finished run of a Pre-LN."""
    run = tmp_path_factory.mktemp("pre_norm") / "run"
    result = train(run, "scheme.name=pre_ln")
    assert result.code == 0, result.err
    return run


def grown(cli, cache, run, out, *options):
    result = cli("grow", run, "--out", out, "--cache", cache, "--json", *options)
    assert result.code == 0, result.err
    return json.loads(result.out)


DEEPER = ("--encoder-layers", 4, "--decoder-layers", 4)


@pytest.mark.parametrize("method", ["stack", "interleave"])
def test_a_pre_norm_run_translates_as_before(cli, cache, corpus, pre_norm, tmp_path, method):
    out = tmp_path / "grown"
    found = grown(cli, cache, pre_norm, out, *DEEPER, "--method", method)
    assert found["preserved"]
    assert found["layers"] == {"encoder": 4, "decoder": 4}
    assert found["loss_after"] == pytest.approx(found["loss_before"], abs=1e-6)
    validated = [r["validation_loss"] for r in read_jsonl(pre_norm / "metrics.jsonl")]
    assert found["loss_before"] == pytest.approx(min(validated), abs=1e-5)
    lines = "".join(
        f"{source}\n" for source, _ in read_pairs(corpus / "text.de", corpus / "text.en")
    )
    text = "".join(lines.splitlines(keepends=True)[:20]).encode()
    before, after = (cli("translate", model, stdin=text) for model in (pre_norm, out))
    assert after.out == before.out


def test_training_goes_on_from_it(cli, cache, train, pre_norm, tmp_path):
    out = tmp_path / "grown"
    found = grown(cli, cache, pre_norm, out, *DEEPER)
    deeper = ("model.encoder_layers=4", "model.decoder_layers=4", "scheme.name=pre_ln")
    run = tmp_path / "run"
    result = train(run, *deeper, "--from", out, "training.max_steps=10")
    assert result.code == 0, result.err
    first = read_jsonl(run / "metrics.jsonl")[0]["validation_loss"]
    assert first < found["loss_before"]
    last = "encoder.layers.3.sublayers.ffn.branch.fc2.weight"
    old, new = (load_bundle(model).model.state_dict()[last] for model in (out, run / "bundle"))
    assert float(old.abs().max()) == 0.0
    assert float(new.abs().max()) > 0.0


def test_a_post_norm_run_jumps_and_says_so(cli, cache, finished, tmp_path):
    found = grown(cli, cache, finished, tmp_path / "grown", *DEEPER)
    assert not found["preserved"]
    assert any("a norm follows the addition" in why for why in found["jumps"])
    assert found["loss_after"] != found["loss_before"]
    result = cli("grow", finished, "--out", tmp_path / "again", "--cache", cache, *DEEPER)
    assert "the function is not preserved: a norm follows" in result.out
    assert f"{found['loss_after']:.4f} after" in result.out


def test_a_bundle_by_itself_has_no_text(cli, cache, pre_norm, tmp_path):
    grown(cli, cache, pre_norm / "bundle", tmp_path / "one", "--encoder-layers", 4)
    result = cli("grow", tmp_path / "one", "--encoder-layers", 8, "--out", tmp_path / "two")
    assert result.code == 0, result.err
    assert "the loss was not measured" in result.out
    record = load_bundle(tmp_path / "two").config.training
    assert record["grown"] == {"method": "stack", "encoder": 8, "decoder": 2}
    assert record["decoding"] == load_bundle(pre_norm / "bundle").config.training["decoding"]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--encoder-layers", 1], 2, "fewer than the 2 of the trained model"),
        (["--encoder-layers", 3], 2, "encoder_layers is 3, and 'stack' has every one of the 2"),
        ([], 2, "2 encoder and 2 decoder layers already"),
    ],
)
def test_what_cannot_be_grown(cli, cache, finished, tmp_path, options, code, words):
    out = tmp_path / "grown"
    result = cli("grow", finished, "--out", out, "--cache", cache, *options)
    assert result.code == code, result.err
    assert words in result.err
    assert len(result.err.splitlines()) == 1
    assert not out.exists()


def test_a_run_without_a_model(cli, tmp_path):
    result = cli("grow", tmp_path, "--encoder-layers", 4, "--out", tmp_path / "grown")
    assert result.code == 1
    assert "is neither a run folder nor a bundle" in result.err
