"""The commands of the tutorial run, in order, shrunk; every link inside the documentation leads somewhere.

A block marked `sh` is run line by line, a block marked `toml` that starts with "# NAME.toml" is written to that file;
blocks without a mark are output or examples.
"""

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import deepnet
import deepnet.data.corpora

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(sh|toml)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
NAMED = re.compile(
    r"(?:deepnet (?:train|prepare|recipes) |deepnet\.train\(\s*\")([a-z]\w*)(?![\w./])"
)
SHORTER = {"head -n 20000": "head -n 600"}
SMALL = [
    "model.encoder_layers=1", "model.decoder_layers=1", "model.d_model=16", "model.ffn_dim=32",
    "model.num_heads=2", "batching.max_tokens=512", "schedule.warmup_steps=1",
    "training.max_steps=6", "training.validate_every=2", "training.save_every=2",
    "decoding.max_length_constant=2",
]  # fmt: skip


def test_the_commands_of_the_tutorial_run(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(deepnet.data.corpora, "CACHE", tmp_path / "cache")
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    commands = []
    for kind, block in BLOCK.findall(text):
        if kind == "toml" and (named := re.match(r"# (\w+\.toml)\n", block)):
            (tmp_path / named[1]).write_text(block)
        elif kind == "sh":
            for line in block.replace("\\\n", " ").splitlines():
                commands.append(line)
                run_line(shrunk(line), cli)
    verbs = {line.partition("deepnet ")[2].split()[0] for line in commands if "deepnet " in line}
    assert verbs >= {"train", "translate", "evaluate", "score", "average", "compare"}


def shrunk(line: str) -> str:
    """Return a command of the tutorial on less text, with a smaller model and fewer updates."""
    for long, short in SHORTER.items():
        line = line.replace(long, short)
    words = line.split()
    if words[:2] != ["deepnet", "train"] or words[2].startswith("runs/"):
        return line
    sizes = SMALL if words[2] == "tune.toml" else [*SMALL, "tokenizer.vocab_size=350"]
    return " ".join([line, *sizes])


def run_line(line: str, cli: Callable[..., Any]) -> bytes:
    """Run a line of shell of the simple kind that a tutorial has: pipes, files, one $(...); return its output."""
    line = re.sub(r"\$\((.*?)\)", lambda inner: run_line(inner[1], cli).decode().strip(), line)
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>")
    lexer.whitespace_split = True
    output = b""
    for words, source, target in stages(list(lexer)):
        given = Path(source).read_bytes() if source else output
        output = run_stage(words, given, cli)
        if target:
            Path(target).write_bytes(output)
    return output


def stages(words: list[str]) -> Iterator[tuple[list[str], str | None, str | None]]:
    """Yield the words, the input file and the output file of each part of a pipe."""
    while words:
        end = words.index("|") if "|" in words else len(words)
        part, words = words[:end], words[end + 1 :]
        files: dict[str, str] = {}
        for sign in ("<", ">"):
            if sign in part:
                place = part.index(sign)
                files[sign] = part[place + 1]
                del part[place : place + 2]
        yield part, files.get("<"), files.get(">")


def run_stage(words: list[str], given: bytes, cli: Callable[..., Any]) -> bytes:
    if words[0] != "deepnet":
        return subprocess.run(words, input=given, capture_output=True, check=True).stdout
    result = cli(*words[1:], stdin=given)
    assert result.code == 0, f"{' '.join(words)}\n{result.err}"
    return result.out.encode()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    prose = FENCED.sub("", page.read_text(encoding="utf-8"))
    for link in LINK.findall(prose):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {link}"


def anchors(page: Path) -> set[str]:
    """Return the names that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_recipes_that_the_pages_name_are_shipped() -> None:
    found = set()
    for page in [*PAGES, *(ROOT / "results").glob("*/README.md")]:
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"recipes/\w+\.toml", text), f"{page} names the file of a recipe"
        found |= set(NAMED.findall(text))
    assert {"demo", "own_files", "multi30k_de_en"} <= found <= set(deepnet.list_recipes())
