"""A model of one text from its file to its bundle: trained, validated, resumed bit for bit, on one process or two.

The file is its own driver: pytest starts it under torchrun with two processes, and without with one.
"""

import json
import math
import random
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from deepnet.bundle import load_bundle, read_tensors
from deepnet.data.tokenizer import TokenizerConfig, train_tokenizer
from deepnet.errors import ConfigError
from deepnet.pipeline.preparing import held_out_batches, prepare_data
from deepnet.pipeline.recipe import Recipe, load_recipe
from deepnet.pipeline.run import run_recipe
from deepnet.record import RunFolder, read_jsonl
from deepnet.training.checkpoint.folder import list_checkpoints

RECIPE = """
[data]
train_text = "{folder}/text"
max_sentence_tokens = 128
[cleaning]
drop_duplicates = false
[tokenizer]
vocab_size = 24
byte_fallback = false
[batching]
max_tokens = 512
micro_batches_per_update = 2
[model]
d_model = 16
ffn_dim = 32
num_heads = 2
[optimizer]
lr = 3e-3
[schedule]
warmup_steps = 4
[training]
max_steps = 8
validate_every = 3
save_every = 4
log_every = 1
"""
SHAPES = {
    "decoder_only": ["model.encoder_layers=0", "model.decoder_layers=2"],
    "encoder_only": ["model.encoder_layers=2", "model.decoder_layers=0"],
}
TIMES = ("seconds", "tokens_per_second", "progress")
both_kinds = pytest.mark.parametrize("architecture", SHAPES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with 300 lines, each a run of the same twelve words in their order, and the recipe."""
    folder, draw = tmp_path_factory.mktemp("text"), random.Random(1)
    words = ["the", "a", "red", "old", "dog", "cat", "man", "tree", "house", "sees", "likes", "and"]
    starts = [(draw.randrange(12), draw.randint(2, 12)) for _ in range(300)]
    lines = [" ".join((2 * words)[first : first + length]) for first, length in starts]
    (folder / "text").write_text("".join(f"{line} .\n" for line in lines))
    (folder / "recipe.toml").write_text(RECIPE.format(folder=folder))
    return folder


def load(folder: Path, architecture: str, *overrides: str) -> Recipe:
    shape = [f"model.architecture={architecture}", *SHAPES[architecture]]
    return load_recipe(folder / "recipe.toml", [*shape, *overrides])


def train(folder: Path, recipe: Recipe, name: str, *, resume: bool = False) -> RunFolder:
    out = folder / name
    run_recipe(recipe, out=out, resume=resume, cache=folder / "cache", device="cpu", report=drop)
    return RunFolder(out)


def drop(message: str) -> None:
    """Take the place of a report."""


def records(run: RunFolder) -> list[dict]:
    """Return what was recorded, without times."""
    return [
        {key: value for key, value in record.items() if key not in TIMES}
        for record in read_jsonl(run.metrics_path)
    ]


@both_kinds
def test_figures_are_those_of_the_finished_model(folder: Path, architecture: str) -> None:
    recipe = load(folder, architecture)
    run = train(folder, recipe, f"{architecture}-finished")
    validated = [r for r in records(run) if "validation_loss" in r]
    assert [record["step"] for record in validated] == [3, 6, 8]
    for record in validated:
        assert record["validation_perplexity"] == pytest.approx(math.exp(record["validation_loss"]))
    best = min(validated, key=lambda record: record["validation_loss"])
    bundle = load_bundle(run.bundle)
    assert bundle.config.training["steps"] == [best["step"]]
    assert bundle.config.languages == {"text": "text"}
    data = prepare_data(recipe, cache=folder / "cache")
    losses = {}
    for part in ("valid", "test"):
        total, count = 0.0, 0
        for batch in held_out_batches(recipe, data, part):
            logits = bundle.model(batch.source, batch.source_keep).detach().double()
            wanted = batch.target_out != bundle.model.config.vocab_size - 1
            total += F.cross_entropy(
                logits[wanted], batch.target_out[wanted], reduction="sum"
            ).item()
            count += int(wanted.sum())
        losses[part] = (total / count, count)
    assert losses["valid"][0] == pytest.approx(best["validation_loss"], rel=1e-5)
    scores = json.loads((run.path / "outputs" / "test.scores.json").read_text())
    assert scores["loss"] == pytest.approx(losses["test"][0], rel=1e-5)
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
    assert (scores["tokens"], scores["sentences"]) == (losses["test"][1], 15)


@both_kinds
def test_training_lowers_the_loss(folder: Path, architecture: str) -> None:
    recipe = load(folder, architecture, "training.max_steps=60", "optimizer.lr=1e-2")
    found = records(train(folder, recipe, f"{architecture}-longer"))
    validated = [r["validation_loss"] for r in found if "validation_loss" in r]
    assert (
        validated[-1] < 0.8 * found[0]["loss"]
    )  # of the first update, before any weight has moved


@both_kinds
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(
    folder: Path, architecture: str
) -> None:
    """Stopped once within the first epoch and once within the second, whose masks are others."""
    whole = train(
        folder, load(folder, architecture, "training.max_steps=16"), f"{architecture}-whole"
    )
    parts = train(
        folder, load(folder, architecture, "training.max_steps=5"), f"{architecture}-parts"
    )
    for steps in (13, 16):
        recipe = load(folder, architecture, f"training.max_steps={steps}")
        parts = train(folder, recipe, parts.path.name, resume=True)
    assert records(whole)[-1]["epoch"] >= 1
    losses = ([r["loss"] for r in records(run) if "loss" in r] for run in (whole, parts))
    assert next(losses) == next(losses)
    last = [list_checkpoints(run.checkpoints)[-1] for run in (whole, parts)]
    for name in ("model.safetensors", "optimizer.safetensors"):
        tensors = [read_tensors(path / name) for path in last]
        assert all(torch.equal(tensors[1][key], tensor) for key, tensor in tensors[0].items())


def test_another_seed_is_validated_on_the_same_masks(folder: Path) -> None:
    recipes = [load(folder, "encoder_only", f"training.seed={seed}") for seed in (1, 2)]
    data = prepare_data(recipes[0], cache=folder / "cache")
    first, second = (held_out_batches(recipe, data, "valid") for recipe in recipes)
    assert all(torch.equal(a.source, b.source) for a, b in zip(first, second, strict=True))


def test_a_tokenizer_without_a_mask_is_refused(folder: Path) -> None:
    lines = (folder / "text").read_text().splitlines()
    small = TokenizerConfig(vocab_size=24, byte_fallback=False)
    train_tokenizer(lines, config=small).save(folder / "own.model")
    recipe = load(folder, "encoder_only")
    own = recipe.model_copy(
        update={"tokenizer": TokenizerConfig(source_model=str(folder / "own.model"))}
    )
    with pytest.raises(ConfigError, match=r"own\.model has no piece '<mask>'"):
        train(folder, own, "without-mask")


def main(folder: Path) -> None:
    """Train as one of two processes."""
    torch.set_num_threads(1)
    train(folder, load(folder, "encoder_only"), "two")


def test_two_processes_compute_what_one_does(folder: Path, run_script) -> None:
    run_script(__file__, folder, ranks=2)
    one = records(train(folder, load(folder, "encoder_only"), "one"))
    two = records(RunFolder(folder / "two"))
    assert [record["step"] for record in two] == list(range(1, 9))
    for ours, theirs in zip(two, one, strict=True):
        assert ours["tokens"] == theirs["tokens"]
        for key in ("loss", "gradient_norm", "validation_loss"):
            if key in theirs:
                assert ours[key] == pytest.approx(theirs[key], rel=1e-4)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
