"""`deepnet probe`: what it shows, on which weights, and that it writes nothing."""

import json
import re
from pathlib import Path

import pytest
import torch

from deepnet.bundle import load_bundle
from deepnet.pipeline.measuring import probe_batch
from deepnet.pipeline.preparing import prepare_data
from deepnet.pipeline.recipe import load_recipe

PROBES = {
    "gradient_norm", "norm_input", "branch_ratio", "similarity", "sparsity", "attention_entropy",
    "token_mean_energy", "logit_scale", "model_update", "predicted_update",
}  # fmt: skip


@pytest.fixture
def measured(cli, cache, finished):
    """Return a function (arguments) -> the JSON of `deepnet probe`."""

    def run(*arguments):
        result = cli("probe", *arguments, "--json", "--cache", cache)
        assert result.code == 0, result.err
        return json.loads(result.out)

    return run


def test_the_latest_checkpoint(measured, finished):
    before = sorted((p, p.stat().st_mtime_ns) for p in finished.rglob("*"))
    found = measured(finished)
    assert sorted((p, p.stat().st_mtime_ns) for p in finished.rglob("*")) == before
    assert (found["steps"], found["sentences"]) == ([30], 4)
    assert found["weights"].endswith("step_00000030")
    assert set(found["readings"]) == PROBES
    assert len(found["readings"]["norm_input"]["decoder.cross"]) == 2
    assert all(value > 0 for value in found["readings"]["model_update"]["decoder"])


def test_an_earlier_checkpoint_has_moved_less(measured, finished):
    moved = [
        measured(finished, "--step", step)["readings"]["model_update"]["output"][0]
        for step in (10, 30)
    ]
    assert 0.0 < moved[0] < moved[1]


def test_a_bundle_gives_what_its_model_computes(measured, cache, finished):
    found = measured(finished / "bundle", "--sentences", 3)
    recipe = load_recipe(finished)
    batch = probe_batch(recipe, prepare_data(recipe, cache=cache), sentences=3)
    model = load_bundle(finished / "bundle").model.eval()
    logits = model(batch.source, batch.source_keep, batch.target_in)
    spread = float(logits.detach().std(-1, correction=0).mean())
    assert found["readings"]["logit_scale"]["output"][0] == pytest.approx(spread, rel=1e-4)
    real = batch.target_out != model.start
    chosen = logits.log_softmax(-1)
    smoothing = recipe.training.label_smoothing
    right = chosen[real].gather(1, batch.target_out[real][:, None]).mean()
    loss = -(1 - smoothing) * right - smoothing * chosen[real].mean()
    assert found["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    (gradient,) = torch.autograd.grad(loss, [model.source_embedding.weight])
    assert found["readings"]["gradient_norm"]["embedding"][0] == pytest.approx(
        float(gradient.norm()), rel=1e-4
    )


def test_a_table_per_stack(cli, cache, finished):
    result = cli("probe", finished, "--cache", cache)
    assert result.code == 0
    lines = result.out.splitlines()
    assert "after 30 updates" in lines[0]
    encoder, decoder = lines.index("encoder"), lines.index("decoder")
    for start in (encoder, decoder):
        rows = [line.split() for line in lines[start + 3 : start + 5]]
        assert [row[0] for row in rows] == ["1", "2"]
        assert "-" in rows[0]
        assert "-" not in rows[1]
    assert any(line.startswith("logit scale") for line in lines)


def test_a_deep_stack_is_abridged(cli, cache, corpus, tmp_path):
    settings = ["model.encoder_layers=18", "model.decoder_layers=1", "training.max_steps=1"]
    run = tmp_path / "deep"
    trained = cli("train", corpus / "recipe.toml", "--out", run, "--cache", cache, *settings)
    assert trained.code == 0, trained.err
    short = cli("probe", run, "--cache", cache).out
    full = cli("probe", run, "--cache", cache, "--all").out

    def rows(text):
        inside = text.split("encoder\n")[1].split("decoder\n")[0].splitlines()
        return [
            int(line.split()[0])
            for line in inside
            if line.strip()[:1].isdigit() and "of 18" not in line
        ]

    assert rows(full) == list(range(1, 19))
    assert set(rows(short)) > {1, 2, 3, 16, 17, 18}
    assert len(rows(short)) < 18
    assert f"{len(rows(short))} of 18 layers" in short


def test_what_cannot_be_measured(cli, cache, finished, tmp_path):
    result = cli("probe", finished, "--step", 7, "--cache", cache)
    assert result.code == 2
    assert "no checkpoint of step 7; there are: step_00000010" in result.err
    assert cli("probe", tmp_path, "--cache", cache).code == 2
    result = cli("probe", finished / "bundle", "--step", 10, "--cache", cache)
    assert result.code == 2
    assert "is a bundle" in result.err


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_only"])
def test_models_of_one_text(cli, cache, corpus, tmp_path, architecture):
    text = (corpus / "text.de").as_posix()
    layers = ("decoder", "encoder") if architecture == "decoder_only" else ("encoder", "decoder")
    (tmp_path / "one.toml").write_text(
        f'[data]\ntrain_text = "{text}"\nlanguage = "de"\n[tokenizer]\nvocab_size = 24\nbyte_fallback = false\n'
        f'[model]\narchitecture = "{architecture}"\n{layers[0]}_layers = 2\n{layers[1]}_layers = 0\n'
        'd_model = 16\nffn_dim = 32\nnum_heads = 2\n[scheme]\nname = "admin"\n[training]\nmax_steps = 2\n'
    )
    run = tmp_path / "run"
    result = cli("train", tmp_path / "one.toml", "--out", run, "--cache", cache)
    assert result.code == 0, result.err
    result = cli("probe", run, "--cache", cache, "--json")
    assert result.code == 0, result.err
    readings = json.loads(result.out)["readings"]
    assert set(readings["similarity"]) == {layers[0]}
    assert 0 < readings["model_update"]["output"][0] < 1


def test_the_example_of_the_page_prints_what_the_page_shows(capsys):
    page = (Path(__file__).parents[2] / "docs" / "probes.md").read_text()
    code, shown = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", page, re.DOTALL).groups()
    exec(compile(code, "docs/probes.md", "exec"), {})
    printed = capsys.readouterr().out
    for line, expected in zip(printed.splitlines(), shown.splitlines(), strict=True):
        *names, value = line.split()
        *expected_names, expected_value = expected.split()
        assert names == expected_names
        assert float(value) == pytest.approx(float(expected_value), rel=0.05)
