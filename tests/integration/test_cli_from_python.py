"""What the command does, from Python: recipes, finished models, and models of one's own."""

import io
import json
from dataclasses import dataclass

import pytest
import torch
from rich.console import Console
from torch import nn

import deepnet
from deepnet.errors import ConfigError
from deepnet.record import read_jsonl


def test_train_is_the_command(corpus, cache, finished, tmp_path):
    shown = io.StringIO()
    run = deepnet.train(
        corpus / "recipe.toml",
        out=tmp_path / "run",
        overrides=["training.max_steps=10"],
        cache=cache,
        console=Console(file=shown),
    )
    assert (run.training.stopped, run.training.step) == ("max_steps", 10)
    assert run.scores["sentences"] == 12
    assert "prepared data" in shown.getvalue()
    [row] = read_jsonl(run.folder / "metrics.jsonl")
    assert row["loss"] == read_jsonl(finished / "metrics.jsonl")[0]["loss"]


def test_a_checked_recipe_takes_no_overrides(corpus, tmp_path):
    recipe = deepnet.load_recipe(corpus / "recipe.toml", ["training.seed=2"])
    assert recipe.training.seed == 2
    with pytest.raises(ConfigError, match="'overrides'"):
        deepnet.train(recipe, out=tmp_path / "run", overrides=["training.seed=3"])
    assert not (tmp_path / "run").exists()


def test_a_run_folder_gives_back_its_recipe(corpus, finished):
    """But for ends, positions, clipping and precision, of which the file says nothing: the run has decided on them."""
    found, file = deepnet.load_recipe(finished), deepnet.load_recipe(corpus / "recipe.toml")
    settled = {"precision": found.training.precision, "clip_norm": 1.0}
    training = file.training.model_copy(update=settled)
    model = file.model.model_copy(update={"positions": "rotary"})
    decided = {"ends": found.ends, "training": training, "model": model}
    assert found == file.model_copy(update=decided)
    assert (file.training.precision, found.training.precision) == ("auto", "fp32")
    assert found.ends.embedding_lr_multiplier is not None


def test_translate_is_the_command(cli, finished):
    bundle = deepnet.load_bundle(finished / "bundle")
    lines = ["der hund .", "", "der rote baum ."]
    config = deepnet.DecodingConfig(beam_size=2)
    shown = cli("translate", finished, stdin="\n".join(lines).encode()).out.splitlines()
    assert list(deepnet.translate(bundle, lines, config=config)) == shown


def own_training(out, *, max_steps, resume=False):
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    result = deepnet.train_model(
        model,
        batches=[torch.randn(8, 4) for _ in range(10)],
        loss=lambda module, x: (module(x) - x.sum(1, keepdim=True)).square().sum(),
        count=len,
        out=out,
        settings={
            "training": {"max_steps": max_steps, "log_every": 10},
            "optimizer": {"lr": 3e-2},
            "schedule": {"name": "constant", "warmup_steps": 0},
        },
        resume=resume,
    )
    return model, result


def test_a_model_batches_and_loss_of_ones_own(tmp_path):
    model, result = own_training(tmp_path / "run", max_steps=300)
    assert (result.stopped, result.step) == ("max_steps", 300)
    torch.testing.assert_close(model.weight, torch.ones(1, 4), rtol=0, atol=1e-3)
    last = read_jsonl(tmp_path / "run" / "metrics.jsonl")[-1]
    assert last["loss"] < 1e-5


def test_it_resumes_bit_for_bit(tmp_path):
    whole, _ = own_training(tmp_path / "whole", max_steps=40)
    own_training(tmp_path / "parts", max_steps=25)
    resumed, result = own_training(tmp_path / "parts", max_steps=40, resume=True)
    assert result.step == 40
    assert torch.equal(whole.weight, resumed.weight)


def test_its_settings_are_checked_like_a_recipe(tmp_path):
    with pytest.raises(ConfigError, match=r"'optimizer\.learning_rate'"):
        deepnet.train_model(
            nn.Linear(4, 1),
            batches=[torch.randn(8, 4)],
            loss=lambda module, x: module(x).sum(),
            out=tmp_path / "run",
            settings={"training": {"max_steps": 1}, "optimizer": {"learning_rate": 1}},
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("label_smoothing", 0.1, "the loss is your own"),
        ("average_last", 2, "no bundle is made"),
    ],
)
def test_keys_that_cannot_have_an_effect_are_refused(tmp_path, key, value, reason):
    with pytest.raises(ConfigError, match=rf"training\.{key} has no effect here: {reason}"):
        deepnet.train_model(
            nn.Linear(4, 1),
            batches=[torch.randn(8, 4)],
            loss=lambda module, x: module(x).sum(),
            out=tmp_path / "run",
            settings={"training": {"max_steps": 1, key: value}},
        )
    assert not (tmp_path / "run").exists()


def test_its_recipe_holds_what_had_an_effect(tmp_path):
    own_training(tmp_path / "run", max_steps=1)
    training = json.loads((tmp_path / "run" / "recipe.json").read_text())["recipe"]["training"]
    assert training["max_steps"] == 1
    assert training.keys().isdisjoint({"label_smoothing", "average_last"})


def test_several_processes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="torchrun started 2 processes, but 'train_model' runs"):
        own_training(tmp_path / "run", max_steps=1)
    assert not (tmp_path / "run").exists()


@dataclass
class Pairs:
    source: torch.Tensor
    target: torch.Tensor

    def to(self, device):
        return Pairs(self.source.to(device), self.target.to(device))


def translation_training(model, out, *, loss=None, resume=False, max_steps=1):
    def whole(module, batch):
        logits = module(batch.source, None, target_in=batch.target[:, :-1])
        return nn.functional.cross_entropy(logits.transpose(1, 2), batch.target[:, 1:])

    draw = torch.Generator().manual_seed(1)
    batches = [Pairs(*torch.randint(2, 29, (2, 3, 5), generator=draw)) for _ in range(2)]
    deepnet.train_model(
        model,
        batches=batches,
        loss=loss or whole,
        out=out,
        settings={"training": {"max_steps": max_steps}},
        resume=resume,
    )
    return batches


def test_the_scheme_of_a_model_of_ours_prepares_itself_once(make_model, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "deepnet.schemes.deepnorm.Scheme.prepare",
        lambda self, model, batches: seen.append((model, list(batches))),
    )
    model = make_model()
    batches = translation_training(model, tmp_path / "run")
    [(prepared, calls)] = seen
    assert prepared is model
    for (source, keep, target_in), batch in zip(calls, batches, strict=True):
        assert keep is None
        assert torch.equal(source, batch.source)
        assert torch.equal(target_in, batch.target[:, :-1])
    translation_training(make_model(), tmp_path / "run", resume=True, max_steps=2)
    translation_training(model, tmp_path / "further")  # it has updates behind it
    assert len(seen) == 1


def test_a_loss_that_calls_only_parts_of_the_model_cannot_show_its_arguments(
    make_model, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "deepnet.schemes.deepnorm.Scheme.prepare", lambda self, model, batches: list(batches)
    )
    with pytest.raises(ConfigError, match="the loss calls only parts of the model"):
        translation_training(
            make_model(), tmp_path / "run", loss=lambda m, b: m.encode(b.source, None).sum()
        )
