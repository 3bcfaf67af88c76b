"""Probes and guard in whole runs: of a recipe, and of a Hugging Face model trained from Python."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

import deepnet
from deepnet.bundle import read_tensors
from deepnet.record import read_jsonl
from deepnet.training.checkpoint import list_checkpoints

TIMES = ("seconds", "tokens_per_second", "progress")


@pytest.fixture
def run(corpus, cache, tmp_path):
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
