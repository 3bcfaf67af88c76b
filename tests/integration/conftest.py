"""The real command, run in this process, on 260 lines of a made-up language pair and a tiny model."""

import io
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest

from deepnet.cli.main import main

WORDS = {
    "der": "the", "hund": "dog", "katze": "cat", "mann": "man", "sieht": "sees",
    "liebt": "loves", "und": "and", "rote": "red", "haus": "house", "baum": "tree",
}  # fmt: skip
RECIPE = """
[data]
train_source = "{folder}/text.de"
train_target = "{folder}/text.en"
source_language = "de"
target_language = "en"
[tokenizer]
vocab_size = 36
byte_fallback = false
[batching]
max_tokens = 256
[model]
encoder_layers = 2
decoder_layers = 2
d_model = 16
ffn_dim = 32
num_heads = 2
[optimizer]
lr = 3e-3
[schedule]
warmup_steps = 10
[training]
max_steps = 30
validate_every = 10
save_every = 10
log_every = 10
[decoding]
beam_size = 2
"""


@dataclass(frozen=True)
class Result:
    """What a command left: its exit code and both streams."""

    code: int
    out: str
    err: str


Cli = Callable[..., Result]


def run_command(*arguments: object, stdin: bytes = b"") -> Result:
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    source = io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin)))
    argv = ["deepnet", *map(str, arguments)]
    with patch.multiple(sys, argv=argv, stdin=source, stdout=out, stderr=err):
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Result(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))


@pytest.fixture(scope="session")
def cli() -> Cli:
    """Return a function (arguments, stdin=bytes) -> Result that runs the command in this process."""
    return run_command


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with text.de, text.en (260 lines, a word-for-word translation) and recipe.toml."""
    folder, draw = tmp_path_factory.mktemp("corpus"), random.Random(1)
    lines = [draw.choices(list(WORDS), k=draw.randint(2, 7)) for _ in range(260)]
    (folder / "text.de").write_text("".join(f"{' '.join(line)} .\n" for line in lines))
    english = (" ".join(WORDS[word] for word in line) for line in lines)
    (folder / "text.en").write_text("".join(f"{line} .\n" for line in english))
    (folder / "recipe.toml").write_text(RECIPE.format(folder=folder))
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of prepared data that all commands share."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def train(corpus: Path, cache: Path) -> Cli:
    """Return a function (run, *options) -> Result that trains the recipe of the corpus into that run folder."""
    command = ("train", corpus / "recipe.toml", "--cache", cache, "--out")
    return lambda run, *options: run_command(*command, run, *options)


@pytest.fixture(scope="session")
def finished(train: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run folder of 30 updates."""
    run = tmp_path_factory.mktemp("runs") / "finished"
    result = train(run)
    assert result.code == 0, result.err
    (run.parent / "finished.out").write_text(result.out)
    return run
