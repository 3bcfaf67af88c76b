"""The demo, shrunk: two models side by side, a picture, samples, and going on where it stopped."""

import io
import random

import pytest
from rich.console import Console

from deepnet.pipeline import demo as module
from deepnet.pipeline.recipe import load_recipe

WORDS = {"hund": "dog", "katze": "cat", "haus": "house", "baum": "tree", "rot": "red", "alt": "old"}
RECIPE = """
[data]
train_source = "{folder}/text.de"
train_target = "{folder}/text.en"
[tokenizer]
vocab_size = 30
byte_fallback = false
[batching]
max_tokens = 256
[model]
encoder_layers = 1
decoder_layers = 1
d_model = 16
ffn_dim = 16
num_heads = 2
[schedule]
name = "linear"
warmup_steps = 2
decay_steps = 20
[training]
max_steps = 20
validate_every = 2
"""


@pytest.fixture
def shrunk(tmp_path, monkeypatch):
    generator = random.Random(1)
    lines = [generator.choices(list(WORDS), k=generator.randint(2, 9)) for _ in range(300)]
    (tmp_path / "text.de").write_text("".join(" ".join(line) + "\n" for line in lines))
    (tmp_path / "text.en").write_text(
        "".join(" ".join(WORDS[w] for w in line) + "\n" for line in lines)
    )
    (tmp_path / "demo.toml").write_text(RECIPE.format(folder=tmp_path))
    monkeypatch.setattr(module, "shipped_recipe", lambda name: tmp_path / f"{name}.toml")
    return tmp_path


def test_the_demo_compares_both_and_can_be_run_again(shrunk):
    console = Console(record=True, width=200, file=io.StringIO())
    found = module.run_demo(shrunk / "run", cache=shrunk / "cache", console=console)
    assert [(row["model"], row["updates"], row["ended"]) for row in found.rows] == [
        ("Post-LN", 2, "max_steps"),
        ("DeepNorm", 20, "max_steps"),
    ]
    assert found.same_step["step"] == 2
    assert found.picture.read_bytes().startswith(b"\x89PNG")
    assert len(found.samples) == 5
    assert all(source.split()[0] in WORDS for source, _, _ in found.samples)
    assert "validation loss" in console.export_text()
    again = module.run_demo(shrunk / "run", cache=shrunk / "cache", console=console)
    assert again.rows == found.rows
    assert again.samples == found.samples


def test_the_two_runs_of_the_real_demo_share_one_schedule():
    recipe = load_recipe(module.RECIPE)
    assert recipe.schedule.decay_steps == recipe.training.max_steps
    assert recipe.training.max_steps // 10 % recipe.training.validate_every == 0
    assert recipe.model.encoder_layers == recipe.model.decoder_layers == 18
    assert recipe.training.precision == "fp32"
