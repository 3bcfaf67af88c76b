"""`deepnet evaluate`, `compare` and `average`."""

import json

import pytest
import torch

from deepnet.bundle import read_tensors


def test_evaluate_gives_the_documented_json_and_repeats_the_run(cli, cache, finished):
    result = cli("evaluate", finished, "--json", "--cache", cache)
    assert result.code == 0
    found = json.loads(result.out)
    assert set(found) == {"bleu", "chrf", "signature", "sentences", "seconds"}
    assert set(found["signature"]) == {"bleu", "chrf"}
    assert "case:mixed|eff:no|tok:13a" in found["signature"]["bleu"]
    recorded = json.loads((finished / "outputs" / "test.scores.json").read_text())
    for name in ("bleu", "chrf", "signature", "sentences"):
        assert found[name] == recorded[name]


def test_evaluate_files_with_tokenised_bleu_under_its_own_label(cli, corpus, finished):
    result = cli(
        "evaluate", finished / "bundle", "--tokenized", "--json",
        "--source", corpus / "text.de", "--reference", corpus / "text.en",
    )  # fmt: skip
    assert result.code == 0
    found = json.loads(result.out)
    assert found["sentences"] == 260
    assert "tok:none" in found["signature"]["tokenized_bleu"]
    assert 0 <= found["tokenized_bleu"] <= 100


def test_evaluate_for_people_shows_signatures(cli, cache, finished):
    result = cli("evaluate", finished, "--part", "valid", "--cache", cache)
    assert result.code == 0
    assert "tok:13a" in result.out
    assert "12 sentences translated" in result.out


def test_compare_tells_a_better_system(cli, corpus, tmp_path):
    references = (corpus / "text.en").read_text().splitlines()
    worse = [line.replace("the", "a") for line in references]
    (tmp_path / "worse").write_text("\n".join(worse) + "\n")
    command = ("compare", tmp_path / "worse", corpus / "text.en", "--reference", corpus / "text.en")
    result = cli(*command, "--samples", 100, "--json")
    assert result.code == 0
    bleu, chrf = json.loads(result.out)
    assert (bleu["metric"], chrf["metric"]) == ("BLEU", "chrF2")
    assert bleu["system"] == pytest.approx(100)
    assert bleu["baseline"] < 90
    assert bleu["p_value"] < 0.05
    assert "bs:100" in bleu["signature"]
    assert "95% confidence" in cli(*command, "--samples", 100).out


def test_compare_needs_texts_of_one_length(cli, corpus, tmp_path):
    (tmp_path / "short").write_text("the dog .\n")
    result = cli(
        "compare", tmp_path / "short", corpus / "text.en", "--reference", corpus / "text.en"
    )
    assert result.code == 1
    assert result.err.startswith("error: 1 translations but 260 references")


def checkpoint(run, step):
    return read_tensors(run / "checkpoints" / f"step_{step:08d}" / "model.safetensors")


def test_average_is_the_mean_of_the_latest_checkpoints(cli, finished, tmp_path):
    result = cli("average", finished, "--last", 2, "--out", tmp_path / "mean", "--json")
    assert result.code == 0
    assert json.loads(result.out) == {"bundle": str(tmp_path / "mean"), "steps": [20, 30]}
    mean = read_tensors(tmp_path / "mean" / "model.safetensors")
    a, b = checkpoint(finished, 20), checkpoint(finished, 30)
    for name, tensor in mean.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, (a[name] + b[name]) / 2)
    assert cli("translate", tmp_path / "mean", stdin=b"der hund .\n").code == 0


def test_an_unfinished_run_becomes_a_bundle_too(cli, finished, cache, tmp_path):
    run = tmp_path / "run"
    for file in finished.rglob("*"):
        if file.is_file() and "bundle" not in file.parts:
            copy = run / file.relative_to(finished)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    result = cli("translate", run, stdin=b"der hund .\n")
    assert result.code == 1
    assert "is not finished" in result.err
    assert cli("average", run, "--last", 1, "--cache", cache).code == 0
    assert cli("translate", run / "average_1", stdin=b"der hund .\n").code == 0
