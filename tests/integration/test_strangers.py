"""Nothing of somebody else's runs code: a class that a bundle or run names is imported only when it is trusted."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deepnet.bundle import load_bundle
from deepnet.errors import CheckpointError
from deepnet.pipeline.entry import train

NAME = "strange_notes:Scheme"
MODULE = """
from pathlib import Path
from deepnet.schemes.post_ln import Scheme as PostLN

with Path(__file__).with_name("ran").open("a") as file:
    file.write("x")


class Scheme(PostLN):
    pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a module in it, as the command finds one; "ran" appears when it is imported."""
    (tmp_path / "strange_notes.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "strange_notes", raising=False)
    yield tmp_path
    sys.modules.pop("strange_notes", None)


@pytest.fixture(scope="module")
def strange(corpus, cache, tmp_path_factory):
    """The run folder of a scheme of somebody's own, which the recipe names."""
    place = tmp_path_factory.mktemp("strange")
    (place / "strange_notes.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        train(
            corpus / "recipe.toml", out=place / "run", cache=cache,
            overrides=[f"scheme.name={NAME}", "training.max_steps=4", "training.save_every=2"],
        )  # fmt: skip
    del sys.modules["strange_notes"]
    assert (place / "ran").exists()
    return place / "run"


def verbs(strange, corpus, cache, new):
    """Return every command that opens a model, without what trusts it."""
    given = ["--source", corpus / "text.de", "--reference", corpus / "text.en"]
    pair = ["--source", corpus / "text.de", "--target", corpus / "text.en"]
    kept = ["--cache", cache]
    tune = ["train", corpus / "recipe.toml", f"scheme.name={NAME}", "training.max_steps=1", *kept]
    return {
        "translate a run": ["translate", strange],
        "translate a bundle": ["translate", strange / "bundle"],
        "score": ["score", strange / "bundle", *pair],
        "evaluate its part": ["evaluate", strange, *kept],
        "evaluate files": ["evaluate", strange / "bundle", *given, *kept],
        "probe a run": ["probe", strange, *kept],
        "probe a bundle": ["probe", strange / "bundle", *kept],
        "average": ["average", strange, "--last", "2", "--out", new, *kept],
        "fine-tune": [*tune, "--from", strange, "--out", new],
    }


VERBS = list(verbs(*[Path()] * 4))


@pytest.mark.parametrize("verb", VERBS)
def test_a_class_that_is_not_trusted_is_refused_in_one_line(
    cli, folder, strange, corpus, cache, verb
):
    command = verbs(strange, corpus, cache, folder / "new")[verb]
    result = cli(*command, stdin=b"der hund .\n")
    assert result.code == 1
    assert len(result.err.splitlines()) == 1
    assert f"--trust-code {NAME}" in result.err
    assert not (folder / "new").exists()
    if verb != "fine-tune":  # there the user's own recipe names the class, too
        assert not (folder / "ran").exists()


@pytest.mark.parametrize("verb", VERBS)
def test_a_class_that_is_trusted_by_name_is_used(cli, folder, strange, corpus, cache, verb):
    command = verbs(strange, corpus, cache, folder / "new")[verb]
    other = cli(*command, "--trust-code", "strange_notes:Other", stdin=b"der hund .\n")
    assert other.code == 1
    result = cli(*command, "--trust-code", NAME, stdin=b"der hund .\n")
    assert result.code == 0, result.err
    assert (folder / "ran").exists()


def test_python_asks_for_the_same_trust(folder, strange):
    with pytest.raises(CheckpointError, match="trust_code='strange_notes:Scheme'"):
        load_bundle(strange / "bundle")
    assert not (folder / "ran").exists()
    for trusted in (NAME, [NAME], {"a:B", NAME}):
        found = load_bundle(strange / "bundle", trust_code=trusted)
        assert type(found.model.scheme).__module__ == "strange_notes"


def test_a_report_imports_nothing(cli, folder, strange):
    assert cli("report", strange, "--out", folder / "page.html").code == 0
    assert not (folder / "ran").exists()


def test_training_by_a_runs_own_recipe_is_the_users_act(cli, folder, strange, cache):
    shutil.copytree(strange, folder / "run")
    options = ["--resume", "--cache", cache, "training.max_steps=5"]
    result = cli("train", "run", "--out", "run", *options)
    assert result.code == 0, result.err
    assert (
        json.loads((folder / "run" / "recipe.json").read_text())["recipe"]["scheme"]["name"] == NAME
    )


def test_a_file_of_the_working_directory_does_not_pass_for_an_installed_package(tmp_path):
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong torch')\n")
    command = "from deepnet.cli.main import main; main()"
    result = subprocess.run(
        [sys.executable, "-P", "-c", command, "probe", "nowhere"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "the wrong torch" not in result.stderr
    assert (result.returncode, "nowhere" in result.stderr) == (2, True), result.stderr


def test_what_a_strangers_file_says_does_not_reach_the_terminal_as_it_is(cli, finished, tmp_path):
    shutil.copytree(finished / "bundle", tmp_path / "b")
    (tmp_path / "b" / "SHA256SUMS").unlink()
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    (tmp_path / "b" / "config.json").write_text(json.dumps({**config, "\x1b[2Jmodle": 1}))
    result = cli("translate", tmp_path / "b")
    assert result.code == 1
    assert r"\x1b[2Jmodle" in result.err
    assert "\x1b" not in result.err


@pytest.mark.parametrize(
    ("decoding", "words"),
    [
        ({"beam_size": 10**9}, "decoding.beam_size = 1000000000, more than 1,000"),
        ({"max_length_constant": 10**9}, "max_length_constant"),
        ({"beam_size": "wide"}, "its recorded decoding cannot be used"),
        (["beam"], "its recorded decoding cannot be used"),
    ],
)
def test_a_bundle_cannot_ask_for_an_endless_search(cli, finished, tmp_path, decoding, words):
    shutil.copytree(finished / "bundle", tmp_path / "b")
    (tmp_path / "b" / "SHA256SUMS").unlink()
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    config["training"]["decoding"] = decoding
    (tmp_path / "b" / "config.json").write_text(json.dumps(config))
    result = cli("translate", tmp_path / "b", stdin=b"der hund .\n")
    assert result.code == 1
    assert len(result.err.splitlines()) == 1
    assert words in result.err
