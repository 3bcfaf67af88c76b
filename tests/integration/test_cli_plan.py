"""`deepnet plan` against a run of the same recipe, and a run that is refused as it cannot fit."""

import json
import re

import pytest

from deepnet.bundle import load_bundle
from deepnet.pipeline import budgeting, fitting, plan_run
from deepnet.pipeline.recipe import load_recipe


@pytest.fixture(scope="module")
def planned(cli, corpus, cache):
    result = cli("plan", corpus / "recipe.toml", "--json", "--cache", cache)
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_parameters_are_those_of_the_finished_model(planned, finished):
    model = load_bundle(finished / "bundle").model
    found = sum(sum(roles.values()) for roles in planned["parameters"].values())
    assert found == sum(p.numel() for p in model.parameters())
    assert planned["memory"]["weights"] >= 4 * found


def test_files_are_of_the_size_that_a_run_leaves(planned, finished):
    [checkpoint] = (finished / "checkpoints").glob("step_00000030")
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert planned["checkpoint"][file] == (checkpoint / file).stat().st_size
    assert (checkpoint / "guard.safetensors").stat().st_size <= planned["checkpoint"][
        "guard.safetensors"
    ] * 1.1
    bundle = sum(f.stat().st_size for f in (finished / "bundle").glob("*.[sm]*"))
    assert planned["disk"]["bundle"] == bundle


def test_a_run_that_fits_is_timed_to_its_end(planned):
    time = planned["time"]
    assert planned["fits"]
    assert time["updates"] == planned["end"]["updates"] == 30
    assert time["seconds"] == pytest.approx(30 * time["update_seconds"])
    assert time["tokens_per_second"] == pytest.approx(
        planned["update"]["target_tokens"] / time["update_seconds"]
    )


def test_what_auto_is_stands_with_its_reason(planned):
    found = {choice["key"]: (choice["value"], choice["reason"]) for choice in planned["choices"]}
    assert found["training.precision"][0] == "fp32"
    assert "below d_model 512" in found["training.precision"][1]
    assert found["--device"][0] == planned["device"] == "cpu"


def test_minutes_end_a_run_before_its_updates_do(cli, corpus, cache):
    options = ["training.max_steps=1000000000", "training.max_minutes=1"]
    time = json.loads(
        cli("plan", corpus / "recipe.toml", *options, "--json", "--cache", cache).out
    )["time"]
    assert 60 - time["update_seconds"] <= time["seconds"] <= 60


def test_a_plan_for_people(cli, corpus, cache):
    result = cli("plan", corpus / "recipe.toml", "--cache", cache)
    assert result.code == 0, result.err
    for word in (
        "fc1",
        "backward",
        "activations",
        "at the peak",
        "fits in",
        "checkpoint",
        "tokens/s",
    ):
        assert word in result.out


def test_what_cannot_fit_is_refused_with_what_would_help(cli, corpus, cache, tmp_path, monkeypatch):
    options = [
        "model.encoder_layers=8",
        "model.decoder_layers=8",
        "data.max_sentence_tokens=64",
        "--cache",
        cache,
    ]
    plan = ["plan", corpus / "recipe.toml", *options, "--json"]
    needed = json.loads(cli(*plan).out)["memory"]["needed"]
    monkeypatch.setattr(fitting, "memory_bytes", lambda device: needed // 2)
    monkeypatch.setattr(plan_run, "memory_bytes", lambda device: needed // 2)
    refused = cli("train", corpus / "recipe.toml", *options, "--out", tmp_path / "run")
    assert refused.code == 2
    assert len(refused.err.splitlines()) == 1
    told = float(re.search(r"needs about (\d+) MiB", refused.err)[1]) * 2**20
    assert told == pytest.approx(
        needed, rel=0.2
    )  # what the tests hold grows from one command to the next
    assert "training.recompute = true" in refused.err
    assert "batching.max_tokens = 128 and batching.micro_batches_per_update = 2" in refused.err
    assert not (tmp_path / "run").exists()
    found = json.loads(cli(*plan).out)
    assert (found["fits"], found["time"]) == (False, None)


def test_a_run_that_nearly_fills_the_memory_is_told_so(cli, corpus, cache, tmp_path, monkeypatch):
    plan = ["plan", corpus / "recipe.toml", "--cache", cache]
    needed = json.loads(cli(*plan, "--json").out)["memory"]["peak"]
    monkeypatch.setattr(fitting, "memory_bytes", lambda device: int(0.97 * needed))
    run = ["--out", tmp_path / "run", "--cache", cache, "training.max_steps=1"]
    result = cli("train", corpus / "recipe.toml", *run)
    assert result.code == 0, result.err
    assert "memory is tight" in result.out


SCHEME = """
from dataclasses import dataclass

from deepnet.schemes import deepnorm

@dataclass(frozen=True, kw_only=True)
class Scheme(deepnorm.Scheme):
    \"\"\"DeepNorm that is defined for two layers alone.\"\"\"

    def stack(self, context):
        if context.num_layers != 2:
            return 1 / (context.num_layers - context.num_layers)
        return super().stack(context)
"""


def test_a_scheme_that_is_defined_at_its_depth_alone_is_trained(
    cli, corpus, cache, tmp_path, monkeypatch
):
    (tmp_path / "of_two.py").write_text(SCHEME)
    monkeypatch.syspath_prepend(tmp_path)
    result = cli(
        "train", corpus / "recipe.toml", "scheme.name=of_two:Scheme", "model.encoder_layers=2",
        "model.decoder_layers=2", "training.max_steps=1", "--cache", cache, "--out", tmp_path / "run",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert "whether the run fits is not known" not in result.out


DEEP = [
    "model.encoder_layers=8",
    "model.decoder_layers=8",
    "training.max_steps=2",
    "probes.every=0",
]
WIDE = [
    "model.d_model=64",
    "model.ffn_dim=4096",
    "data.max_sentence_tokens=32",
    "batching.max_tokens=32",
    "training.max_steps=2",
    "probes.every=0",
]


@pytest.fixture
def peaks(cli, corpus, cache, monkeypatch):
    """Return the planned peak of each way to train, without this process, which grows from one command to the next."""
    for module in (budgeting, plan_run):
        monkeypatch.setattr(module, "process_bytes", lambda conditions: 0)

    def planned(*options):
        plan = ["plan", corpus / "recipe.toml", *DEEP, *options, "--json", "--cache", cache]
        return json.loads(cli(*plan).out)["memory"]["peak"]

    again = "training.recompute=true"
    return {
        "plain": planned(),
        "by layer": planned(again),
        "nested": planned(again, "training.recompute_segment=0"),
    }


def chosen(run):
    recorded = json.loads((run / "recipe.json").read_text())["recipe"]
    return [
        recorded["training"][key] for key in ("recompute", "recompute_segment", "step_in_backward")
    ]


def test_a_budget_takes_the_first_way_that_it_holds(cli, corpus, cache, tmp_path, peaks):
    """In `plan` and in `train`, which records it and goes on in it."""
    assert peaks["nested"] < peaks["by layer"] < peaks["plain"]
    ample = [f"memory.budget={10 * peaks['plain']}B"]
    found = json.loads(
        cli("plan", corpus / "recipe.toml", *DEEP, *ample, "--json", "--cache", cache).out
    )
    assert found["choices"][-1]["value"] == "as the recipe says"
    between = (peaks["by layer"] + peaks["plain"]) // 2
    options = [*DEEP, f"memory.budget={between}B", "--cache", cache]
    result = cli("plan", corpus / "recipe.toml", *options)
    assert result.code == 0, result.err
    assert f"memory.budget = {between}B is training." in result.out
    run = tmp_path / "run"
    result = cli("train", corpus / "recipe.toml", *options, "--out", run)
    assert result.code == 0, result.err
    assert f"memory.budget = {between}B is training." in result.out
    first = chosen(run)
    assert first != [False, 1, False]
    longer = ["training.max_steps=3", "--out", run, "--resume"]
    result = cli("train", corpus / "recipe.toml", *options, *longer)
    assert result.code == 0, result.err
    assert "planning the memory" not in result.out
    assert chosen(run) == first


def test_a_budget_that_holds_no_way_is_refused_with_the_peak_of_each(cli, corpus, cache, tmp_path):
    options = ["probes.every=0", "memory.budget=1MB", "--cache", cache]
    for command in (["plan"], ["train", "--out", tmp_path / "run"]):
        result = cli(command[0], corpus / "recipe.toml", *command[1:], *options)
        assert result.code == 2
        assert len(result.err.splitlines()) == 1
        assert "memory.budget = '1MB' (977 KiB) holds no way to train this" in result.err
        assert result.err.count(" takes ") == 6
    assert not (tmp_path / "run").exists()


def test_why_no_step_is_taken_in_the_backward_pass_is_said(cli, corpus, cache):
    options = ["memory.budget=1MB", "training.clip_norm=1.0", "--cache", cache]
    result = cli("plan", corpus / "recipe.toml", *options)
    assert "step_in_backward was not tried, because of training.clip_norm = 1.0" in result.err
    assert result.err.count(" takes ") == 3


def test_the_default_of_clipping_gives_way_where_nothing_else_fits_and_one_that_is_asked_for_does_not(
    cli, corpus, cache, tmp_path, monkeypatch
):
    """Of a wide model on short batches, of which gradients take more than activations."""
    for module in (budgeting, plan_run):
        monkeypatch.setattr(module, "process_bytes", lambda conditions: 0)
    options = [*WIDE, "--cache", cache]
    refused = cli("plan", corpus / "recipe.toml", *options, "memory.budget=1kB")
    plain, in_backward = (
        float(peak) * 2**20 for peak in re.findall(r"takes ([\d.]+) MiB", refused.err)[:2]
    )
    assert in_backward < plain
    options += [f"memory.budget={(plain + in_backward) / 2:.0f}B"]
    gives_way = "not scaled down to 1, because of training.step_in_backward = true"
    planned = cli("plan", corpus / "recipe.toml", *options)
    assert "is training.step_in_backward = true:" in planned.out
    assert gives_way in planned.out
    silent, asked = tmp_path / "silent", tmp_path / "asked"
    assert gives_way in cli("train", corpus / "recipe.toml", *options, "--out", silent).out
    assert chosen(silent) == [False, 1, True]
    assert load_recipe(silent).training.clip_norm == 0.0
    said = cli("train", corpus / "recipe.toml", *options, "training.clip_norm=1.0", "--out", asked)
    assert said.code == 2
    assert "step_in_backward was not tried, because of training.clip_norm = 1.0" in said.err


def test_a_dry_run_trains_within_the_budget_as_the_run_would(cli, corpus, cache, peaks):
    dry = ["train", corpus / "recipe.toml", *DEEP, "--dry-run", "--cache", cache]
    between = (peaks["by layer"] + peaks["plain"]) // 2
    result = cli(*dry, f"memory.budget={between}B", "training.clip_norm=1.0")
    assert result.code == 0, result.err
    assert f"memory.budget = {between}B is training.recompute = true:" in result.out
    assert "planning the memory" not in cli(*dry).out


def test_a_dry_run_is_refused_where_the_budget_holds_no_way(cli, corpus, cache):
    result = cli(
        "train", corpus / "recipe.toml", "--dry-run", "memory.budget=1MB", "--cache", cache
    )
    assert result.code == 2
    assert "memory.budget = '1MB' (977 KiB) holds no way to train this" in result.err
