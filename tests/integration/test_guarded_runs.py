"""Probes and guard in whole runs: of a recipe, and of a Hugging Face model trained from Python."""

import json
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

import deepnet
from deepnet.bundle import read_tensors
from deepnet.errors import ConfigError
from deepnet.record import read_jsonl
from deepnet.training.checkpoint.folder import list_checkpoints

TIMES = ("seconds", "tokens_per_second", "progress")


@pytest.fixture
def run(corpus, cache, finished, tmp_path):
    """Return a function (name, overrides, **arguments) that trains the small recipe and returns its folder."""

    def train(name, *overrides, **arguments):
        recipe = deepnet.load_recipe(corpus / "recipe.toml", overrides)
        return deepnet.train(recipe, out=tmp_path / name, cache=cache, **arguments).folder

    return train


def metrics(folder):
    records = read_jsonl(folder / "metrics.jsonl")
    return [{k: v for k, v in one.items() if k not in TIMES} for one in records]


def weights(folder):
    return read_tensors(list_checkpoints(folder / "checkpoints")[-1] / "model.safetensors")


def test_probes_change_nothing_that_is_trained(run):
    measured, plain = run("measured", "probes.every=4"), run("plain", "probes.every=0")
    assert metrics(measured) == metrics(plain)
    before, after = weights(plain), weights(measured)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not (plain / "probes.jsonl").exists()
    readings = read_jsonl(measured / "probes.jsonl")
    assert [one["step"] for one in readings] == [1, 4, 8, 12, 16, 20, 24, 28]
    assert len(readings[0]["norm_input"]["encoder.ffn"]) == 2
    assert readings[-1]["model_update"]["output"][0] > readings[0]["model_update"]["output"][0] > 0
    assert readings[0]["model_update"] == readings[0]["step_update"]


def test_a_resumed_run_goes_on_comparing_with_the_first_weights(run):
    whole = run("whole", "probes.every=4")
    run("parts", "probes.every=4", "training.max_steps=18")
    parts = run("parts", "probes.every=4", resume=True)
    readings = [read_jsonl(folder / "probes.jsonl") for folder in (whole, parts)]
    assert readings[0] == readings[1]


def llama():
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def next_token(model, ids):
    logits = model(input_ids=ids[:, :-1]).logits
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")


def plant_nan(calls, gradient):
    """Spoil the 25th gradient of a weight."""
    calls.append(1)
    if len(calls) == 25:
        gradient = gradient.clone()
        gradient[0, 0] = torch.nan
    return gradient


def test_a_nan_planted_in_a_hugging_face_model_is_skipped_and_named(tmp_path):
    model = llama()
    planted = model.model.layers[1].mlp.down_proj.weight
    planted.register_hook(partial(plant_nan, []))
    deepnet.train_model(
        model,
        batches=[torch.randint(1, 20, (4, 8)) for _ in range(40)],
        loss=next_token,
        count=lambda ids: ids[:, 1:].numel(),
        out=tmp_path / "run",
        settings={
            "training": {"max_steps": 40},
            "schedule": {"warmup_steps": 5},
            "guard": {"nan": "skip"},
            "probes": {"every": 10},
        },
    )
    (incident,) = read_jsonl(tmp_path / "run/incidents.jsonl")
    assert (incident["step"], incident["where"]) == (25, "decoder.2.ffn.fc2")
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    readings = read_jsonl(tmp_path / "run/probes.jsonl")
    assert [one["step"] for one in readings] == [1, 10, 20, 30, 40]
    assert len(readings[0]["attention_entropy"]["decoder.self"]) == 3


def train_llama(out, model, *, loss=next_token, steps=30, **sections):
    deepnet.train_model(
        model,
        batches=[torch.randint(1, 20, (4, 8)) for _ in range(40)],
        loss=loss,
        count=lambda ids: ids[:, 1:].numel(),
        out=out,
        settings={
            "training": {"max_steps": steps},
            "optimizer": {"name": "sgd", "lr": 1e-3},
            "schedule": {"name": "constant", "warmup_steps": 0},
            **sections,
        },
    )
    incidents = out / "incidents.jsonl"
    return read_jsonl(incidents) if incidents.exists() else []


def test_a_layer_that_does_not_run_is_neither_blamed_nor_a_plateau(tmp_path):
    model = llama()
    model.model.layers[-1].forward = lambda x, *_, **__: x
    model.model.layers[0].mlp.down_proj.weight.register_hook(partial(plant_nan, []))
    incidents = train_llama(tmp_path / "run", model, guard={"nan": "skip"})
    assert [(one["kind"], one["where"]) for one in incidents] == [("nan", "decoder.1.ffn.fc2")]


def test_a_head_that_starts_at_zero_does_not_explode(tmp_path):
    model = llama()
    torch.nn.init.zeros_(model.lm_head.weight)
    sections = {"guard": {"explosion": "stop"}, "probes": {"every": 1}}
    assert train_llama(tmp_path / "run", model, steps=3, **sections) == []


def test_an_adapter_in_a_known_model_is_trained_without_places(tmp_path):
    model = llama()
    for layer in model.model.layers:
        torch.nn.utils.parametrizations.weight_norm(layer.self_attn.q_proj)
    assert train_llama(tmp_path / "run", model, steps=3) == []


def test_a_warned_update_is_measured_all_the_same(tmp_path):
    calls = []

    def loud(model, ids):
        calls.append(torch.is_grad_enabled())
        return next_token(model, ids) * (100 if calls[-1] and sum(calls) == 20 else 1)

    incidents = train_llama(tmp_path / "run", llama(), loss=loud, probes={"every": 5})
    assert [(one["step"], one["action"]) for one in incidents] == [(20, "warn")]
    details = json.loads((tmp_path / "run" / incidents[0]["details"]).read_text())
    assert len(details["probes"]["norm_input"]["decoder.ffn"]) == 3
    assert len(details["again"]["output"]["decoder.ffn.fc2"]) == 3
    readings = read_jsonl(tmp_path / "run/probes.jsonl")
    assert [one["step"] for one in readings] == [1, 5, 10, 15, 20, 25, 30]


def test_a_loss_that_calls_a_part_of_the_model_cannot_be_probed(tmp_path):
    def part(model, ids):
        return model.lm_head(model.model(input_ids=ids).last_hidden_state).square().sum()

    with pytest.raises(ConfigError, match=r"probes\.every = 0"):
        train_llama(tmp_path / "run", llama(), loss=part, steps=3, probes={"every": 1})
    train_llama(tmp_path / "other", llama(), loss=part, steps=3)
