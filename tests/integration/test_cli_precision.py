"""The precision of a run is found when it begins, recorded, and kept on any device."""

import json

import pytest
import torch

from deepnet.pipeline.opening import open_models
from deepnet.pipeline.settling import settle_precision
from deepnet.training.config import TrainingConfig
from deepnet.training.engine import precision as precisions
from deepnet.transformer.embeddings import VocabularyProjection


@pytest.fixture
def able(monkeypatch):
    """Let every processor count as one that multiplies bf16 fast."""
    monkeypatch.setattr(precisions, "_bf16_pays", lambda device, width: True)


def test_a_run_goes_on_in_the_precision_it_was_begun_in(cli, corpus, cache, tmp_path, monkeypatch):
    run = tmp_path / "run"
    train = ["train", corpus / "recipe.toml", "--out", run, "--cache", cache]
    with monkeypatch.context() as patch:
        patch.setattr(precisions, "_bf16_pays", lambda device, width: True)
        assert cli(*train, "training.max_steps=2").code == 0
    assert _recorded(run) == "bf16"
    again = cli(*train, "training.max_steps=4", "--resume")
    assert again.code == 0, again.err
    assert _recorded(run) == "bf16"
    other = cli(*train, "training.max_steps=6", "training.precision=fp32", "--resume")
    assert other.code == 2
    assert "'training.precision' was 'bf16' and is now 'fp32'" in other.err


def test_a_run_is_refused_where_the_device_cannot_go_on_in_its_precision(cli, cache, finished):
    file = finished / "recipe.json"
    before = file.read_text()
    recorded = json.loads(before)
    assert recorded["recipe"]["training"]["precision"] == "fp32"
    recorded["recipe"]["training"]["precision"] = "fp16"
    file.write_text(json.dumps(recorded))
    try:
        result = cli(
            "train", finished, "--out", finished, "--resume", "--cache", cache, "--device", "cpu"
        )
    finally:
        file.write_text(before)
    assert result.code == 2
    assert len(result.err.splitlines()) == 1
    assert "resume a run that was begun in fp16 on a GPU" in result.err


@pytest.mark.parametrize(
    ("said", "recorded", "expected"),
    [("auto", "fp32", "fp32"), ("auto", "auto", "bf16"), ("auto", None, "bf16"), ("fp32", "bf16", "fp32")],
)  # fmt: skip
def test_what_is_recorded_takes_the_place_of_auto_alone(able, said, recorded, expected):
    section = TrainingConfig(max_steps=1, precision=said)
    before = None if recorded is None else {"precision": recorded}
    found = settle_precision(section, device=precisions.torch.device("cpu"), recorded=before)
    assert found == section.model_copy(update={"precision": expected})


def test_a_finished_model_runs_in_the_precision_of_its_run_where_that_pays(
    cli, corpus, cache, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    short = ["training.max_steps=2", "validation.bleu=true", "training.validate_every=2"]
    types = set()

    def noting(model, x, logits):
        types.add(logits.dtype)

    with monkeypatch.context() as patch:
        patch.setattr(precisions, "_bf16_pays", lambda device, width: True)
        patch.setattr(VocabularyProjection, "__call__", _calling(noting))
        result = cli("train", corpus / "recipe.toml", "--out", run, "--cache", cache, *short)
        assert result.code == 0, result.err
        assert types == {torch.bfloat16}  # training, validation, its BLEU and the test part
        found, _ = open_models([run])
        with found.autocast():
            assert torch.is_autocast_enabled("cpu")
    for asked, is_cast in (("auto", False), ("fp32", False), ("bf16", True)):
        found, _ = open_models([run], precision=asked)
        with found.autocast():
            assert torch.is_autocast_enabled("cpu") == is_cast
    refused = cli("translate", run, "--precision", "fp16", "--device", "cpu", stdin=b"der hund\n")
    assert refused.code == 2
    assert "needs a GPU" in refused.err


def _calling(note):
    """Return what calls a module and notes its output."""

    def call(module, *args, **kwargs):
        found = torch.nn.Module.__call__(module, *args, **kwargs)
        note(module, args, found)
        return found

    return call


def _recorded(run):
    return json.loads((run / "recipe.json").read_text())["recipe"]["training"]["precision"]
