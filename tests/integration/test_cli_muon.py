"""optimizer.name = "muon" through the command: what a run says, records, resumes, and what its plan tells of it."""

import json

import pytest

from deepnet.pipeline.recipe import load_recipe
from deepnet.record import read_jsonl

OPTIONS = (
    "optimizer.name=muon", "optimizer.lr=3e-3", "optimizer.muon.lr=2e-2",
    "optimizer.muon.momentum=0.0", "optimizer.muon.weight_decay=0.0", "schedule.name=constant",
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory):
    run = tmp_path_factory.mktemp("muon") / "whole"
    result = train(run, *OPTIONS)
    assert result.code == 0, result.err
    return run, result


def losses(run):
    records = read_jsonl(run / "metrics.jsonl")
    return {r["step"]: (r["loss"], r["validation_loss"]) for r in records}


def test_it_learns_and_what_it_was_told_is_recorded(whole):
    run, result = whole
    found = losses(run)
    assert found[30][1] < 0.8 * found[10][1]
    assert "times as fast as AdamW's other parameters" in result.out
    muon = load_recipe(run).optimizer.muon
    assert (muon.lr, muon.momentum, muon.weight_decay, muon.ns_steps) == (2e-2, 0.0, 0.0, 5)


def test_it_goes_on_as_if_it_had_not_stopped_and_refuses_another_section(train, whole, tmp_path):
    run = tmp_path / "part"
    assert train(run, *OPTIONS, "training.max_steps=20").code == 0
    refused = train(run, *OPTIONS, "optimizer.muon.nesterov=false", "--resume")
    assert refused.code == 2
    assert "'optimizer.muon.nesterov' was True and is now False" in refused.err
    resumed = train(run, *OPTIONS, "--resume")
    assert resumed.code == 0, resumed.err
    assert losses(run) == losses(whole[0])
    for file in ("model", "optimizer"):
        one, other = (
            r / "checkpoints" / "step_00000030" / f"{file}.safetensors" for r in (run, whole[0])
        )
        assert one.read_bytes() == other.read_bytes()


def test_its_plan_tells_the_size_of_its_state(cli, corpus, cache, whole):
    result = cli("plan", corpus / "recipe.toml", *OPTIONS, "--json", "--cache", cache)
    assert result.code == 0, result.err
    file = whole[0] / "checkpoints" / "step_00000030" / "optimizer.safetensors"
    assert json.loads(result.out)["checkpoint"]["optimizer.safetensors"] == file.stat().st_size


def test_a_run_from_before_there_was_a_section_is_resumed(train, tmp_path):
    run = tmp_path / "before"
    assert train(run, "training.max_steps=10", "schedule.name=constant").code == 0
    for path in (run / "recipe.json", *run.glob("checkpoints/*/state.json")):
        data = json.loads(path.read_text())
        for section in (data.get("recipe", {}), data.get("settings", {})):
            if "optimizer" in section:
                del section["optimizer"]["muon"]
        path.write_text(json.dumps(data))
    for sums in run.glob("checkpoints/*/SHA256SUMS"):
        sums.unlink()
    resumed = train(run, "training.max_steps=20", "schedule.name=constant", "--resume")
    assert resumed.code == 0, resumed.err


def test_a_wrong_key_of_the_section_is_named_with_the_nearest(train, tmp_path):
    result = train(tmp_path / "run", "optimizer.name=muon", "optimizer.muon.ns_step=3")
    assert result.code == 2
    assert "unknown key 'optimizer.muon.ns_step'; did you mean 'ns_steps'?" in result.err


def test_a_run_of_it_is_a_recipe_for_another_optimiser(train, tmp_path):
    run = tmp_path / "run"
    assert train(run, "optimizer.name=muon", "training.max_steps=2").code == 0
    assert load_recipe(run, ["optimizer.name=adamw"]).optimizer.muon is None


def test_layers_that_run_several_times_have_no_depth_for_its_rate(train, tmp_path):
    words = ("optimizer.name=muon", "optimizer.muon.L_base=8", "model.loops=2")
    refused = train(tmp_path / "run", *words)
    assert refused.code == 2
    assert "optimizer.muon.L_base counts stored layers, and model.loops = 2" in refused.err
