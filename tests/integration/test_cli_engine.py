"""A recipe run in parts: trained, validated by BLEU, bundled, and resumed whole."""

import json

from deepnet.record import RunFolder, read_jsonl


def test_a_run_in_parts_ends_as_one_that_is_whole_and_goes_on_whole(cli, corpus, cache, tmp_path):
    command = ["train", corpus / "recipe.toml", "--cache", cache, "model.dropout=0"]
    command += ["probes.every=0", "validation.bleu=true", "training.validate_every=5"]
    rows = {}
    for engine in ("auto", "sharded"):
        out = ["--out", tmp_path / engine, f"training.engine={engine}", "training.max_steps=10"]
        result = cli(*command, *out)
        assert result.code == 0, result.err
        rows[engine] = read_jsonl(RunFolder(tmp_path / engine).metrics_path)
    for ours, theirs in zip(rows["sharded"], rows["auto"], strict=True):
        for key in ("loss", "gradient_norm", "validation_loss", "validation_bleu"):
            if key in theirs:
                assert abs(ours[key] - theirs[key]) <= 1e-5 * abs(theirs[key]), key
    scores = [
        json.loads((tmp_path / engine / "outputs" / "test.scores.json").read_text())["bleu"]
        for engine in rows
    ]
    assert scores[0] == scores[1]
    longer = ["--out", tmp_path / "sharded", "--resume", "training.max_steps=12"]
    assert cli(*command, *longer, "training.engine=auto").code == 0


def test_probes_of_parts_are_refused_before_anything_is_made(cli, corpus, cache, tmp_path):
    where = ["--out", tmp_path / "run", "--cache", cache]
    result = cli("train", corpus / "recipe.toml", *where, "training.engine=sharded")
    assert result.code == 2
    assert "probes.every = 0" in result.err
    assert not (tmp_path / "run").exists()
