"""`deepnet schemes`, `coefficients`, `data` and `version`, and what starting the command costs."""

import importlib
import inspect
import json
import re
import statistics
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from deepnet.schemes.catalogue import CHANGES, list_schemes, scheme_class
from deepnet.version import __version__

ROOT = Path(__file__).parents[2]


def test_schemes_json(cli):
    found = json.loads(cli("schemes", "--json").out)
    assert [row["name"] for row in found] == list_schemes()
    for row in found:
        assert set(row) >= {"name", "summary", "equation", "source", "architectures", "folds_to"}
        assert row["changes"] in CHANGES
        assert row["summary"].endswith(".")
        assert re.search(r"arXiv|ACL|ICML|\w+/\w+", row["source"])  # a paper, or a repository
    by_name = {row["name"]: row for row in found}
    assert by_name["branchnorm"]["folds_to"] == "post_ln"
    # a vector of 512 at 2 * 4 + 3 * 4 sites
    assert by_name["admin"]["extra_parameters"] == 20 * 512
    assert by_name["pre_ln"]["norms"] == "pre; final"


def test_schemes_are_listed_by_what_they_change_in_80_columns(cli):
    lines = cli("schemes").out.splitlines()
    assert max(map(len, lines)) <= 80
    heads = [line.partition(":")[0] for line in lines if line.partition(":")[0] in CHANGES]
    found, head = {}, ""
    for line in lines:
        if line.partition(":")[0] in CHANGES:
            head = line.partition(":")[0]
        elif line.startswith("  ") and line[2] != " ":
            found.setdefault(head, []).append(line.split()[0])
    assert heads == [change for change in CHANGES if change in found]
    assert found == {
        head: [name for name in list_schemes() if scheme_class(name).changes == head]
        for head in heads
    }
    assert sorted(name for names in found.values() for name in names) == list_schemes()
    assert any(line.startswith("mixnorm: a row of table 2 of BranchNorm") for line in lines)


def test_every_equation_of_the_list_is_whole(cli):
    words = " ".join(cli("schemes").out.split())
    for name in list_schemes():
        assert f" {name} {scheme_class(name).equation}" in words


@pytest.mark.parametrize("name", list_schemes())
def test_a_scheme_is_shown_in_full_in_80_columns(cli, monkeypatch, name):
    counted = {"kernels": 1.234, "moved_bytes": 2.345, "kept_bytes": 3.456}
    monkeypatch.setattr("deepnet.survey.sheet.cost_beside_post_ln", lambda *_: counted)
    lines = cli("schemes", name).out.splitlines()
    assert lines[0] == name
    assert max(map(len, lines)) <= 80
    words, kind = " ".join(" ".join(lines).split()), scheme_class(name)
    written = inspect.getdoc(importlib.import_module(kind.__module__))
    for paragraph in written.split("\n\n")[:2]:
        assert " ".join(paragraph.split()) in words
    for option in fields(kind):
        assert f"scheme.{option.name} = " in words
    assert "1.23 times post_ln's kernels, 2.35 times the bytes" in words
    assert "3.46 times what post_ln keeps" in words
    assert ", ".join(kind.grew_out_of or "-") in words


def test_a_scheme_in_full_says_what_was_measured_and_again_by_what(cli):
    text = cli("schemes", "deepnorm").out
    measured = json.loads((ROOT / "results" / "scheme_grid" / "metrics.json").read_text())["cells"]
    for cell in measured:
        if cell["scheme"] == "deepnorm":
            assert f"{cell['losses']['300']:.3f}" in text
    assert "benchmarks/scheme_grid.py --out runs/scheme_grid" in text
    (led,) = (line for line in text.splitlines() if line.startswith("led to "))
    assert {"branchnorm", "sub_ln"} <= set(led.removeprefix("led to").replace(",", "").split())
    assert "folds to     post_ln, exactly" in text
    assert "deepnet coefficients --scheme deepnorm --encoder-layers 18 --decoder-layers 18" in text


def test_a_scheme_in_full_as_json(cli):
    found = json.loads(cli("schemes", "deepnorm", "--json").out)
    listed = {row["name"]: row for row in json.loads(cli("schemes", "--json").out)}["deepnorm"]
    assert {key: found[key] for key in listed} == listed
    assert (found["changes"], found["grew_out_of"]) == ("scale", ["post_ln_init"])
    grown = [name for name in list_schemes() if "deepnorm" in scheme_class(name).grew_out_of]
    assert found["led_to"] == grown
    assert [one["name"] for one in found["options"]] == [
        "convention", "optimizer", "placement", "balance",
    ]  # fmt: skip
    assert found["options"][0]["choices"] == ["paper", "essay"]
    assert found["cost"]["kept_bytes"] == 1  # alpha is a constant: nothing more is kept


def test_a_misspelt_scheme_is_an_error_that_names_the_nearest(cli):
    result = cli("schemes", "deepnrm")
    assert (result.code, result.out) == (2, "")
    assert "unknown scheme 'deepnrm'; did you mean 'deepnorm'?" in result.err


def test_a_scheme_of_ones_own_is_shown_in_full(cli, tmp_path, monkeypatch):
    (tmp_path / "own_sheet.py").write_text(
        "from deepnet.schemes.base import ResidualScheme, SitePlan, glorot\n"
        "class Scheme(ResidualScheme):\n"
        "    equation = 'x <- LN(x + f(x))'\n"
        "    def site(self, context, site):\n"
        "        return SitePlan(branch=site.kind, post=context.norm(), init=glorot())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    text = cli("schemes", "own_sheet:Scheme").out
    assert text.startswith("own_sheet:Scheme\n")
    assert "    x <- LN(x + f(x))\n" in text
    assert "parameters   +0 beside post_ln's" in text
    assert "What we measured\nnothing yet" in text


def test_asking_for_mixnorm_says_that_it_is_undefined(cli):
    result = cli("coefficients", "--scheme", "mixnorm", "--encoder-layers", 6)
    assert result.code == 2
    assert "'mixnorm' is a row of table 2 of BranchNorm" in result.err
    assert "define nowhere" in result.err


def test_coefficients_json_of_an_encoder_decoder(cli):
    found = json.loads(
        cli(
            "coefficients", "--scheme", "deepnorm", "--encoder-layers", 18,
            "--decoder-layers", 18, "--json",
        ).out
    )  # fmt: skip
    assert set(found) == {"scheme", "architecture", "encoder", "decoder", "sites"}
    assert (found["scheme"], found["architecture"]) == ("deepnorm", "encoder_decoder")
    root = (18**4 * 18) ** (1 / 16)
    assert found["encoder"] == pytest.approx({"alpha": 0.81 * root, "beta": 0.87 / root}, rel=1e-12)
    assert found["decoder"] == pytest.approx({"alpha": 54**0.25, "beta": 216**-0.25}, rel=1e-12)
    assert len(found["sites"]) == 2 * 18 + 3 * 18
    for site in found["sites"]:
        assert set(site) == {"stack", "layer", "kind", "skip", "branch", "gain"}
        assert site["skip"] == found[site["stack"]]["alpha"]


def test_a_stack_that_lacks_or_varies_is_null(cli):
    result = cli("coefficients", "--scheme", "post_ln_init", "--encoder-layers", 3, "--json")
    found = json.loads(result.out)
    assert found["decoder"] is None
    assert found["encoder"] == {"alpha": 1.0, "beta": None}
    assert [site["gain"]["fc1"] for site in found["sites"][1::2]] == pytest.approx(
        [1 / 3, 1 / 2, 1]
    )
    shown = cli("coefficients", "--scheme", "post_ln_init", "--encoder-layers", 3).out
    assert "fc1 0.3333" in shown


@pytest.mark.parametrize(
    ("optimizer", "alpha"), [("sgd", 48**0.25), ("adamw", 48**0.5), ("muon", 48**0.5), ("lamb", 1)]
)
def test_the_essays_coefficients_follow_the_optimiser(cli, optimizer, alpha):
    found = json.loads(
        cli(
            "coefficients", "--scheme", "deepnorm", "--decoder-layers", 24, "--json",
            "--optimizer", optimizer, "scheme.convention=essay",
        ).out
    )  # fmt: skip
    assert found["encoder"] is None
    assert found["decoder"]["alpha"] == pytest.approx(alpha, rel=1e-12)


def test_data_list_knows_the_catalogue_and_the_offline_folder(cli, tmp_path, monkeypatch):
    own = tmp_path / "my-corpus"
    own.mkdir()
    (own / "train.de").write_text("gut\n")
    (own / "train.en").write_text("good\n")
    (tmp_path / "no-corpus").mkdir()
    monkeypatch.setenv("DEEPNET_DATA", str(tmp_path))
    found = {
        row["name"]: row
        for row in json.loads(cli("data", "list", "--json", "--cache", tmp_path / "c").out)
    }
    assert found["tatoeba-en-de"]["builtin"]
    assert found["tatoeba-en-de"]["licence"] == "CC BY 2.0 FR"
    assert len(found["home-assistant"]["languages"]) == 43
    assert found["my-corpus"]["folder"] == str(own)
    assert found["wmt14-en-fr"]["folder"] is None
    assert found["wmt14-en-fr"]["checksum"] == "unknown"
    assert found["tatoeba-en-de"]["checksum"] is found["my-corpus"]["checksum"] is None
    assert "no-corpus" not in found
    assert {"multi30k", "iwslt14-de-en", "wmt17-en-de", "opus-100", "multiun"} <= set(found)
    shown = cli("data", "list", "--cache", tmp_path / "c").out
    assert "to be downloaded, checksum unknown" in shown
    assert "built in" in shown


def test_data_get_shows_the_licence_and_the_folder(cli, tmp_path):
    result = cli("data", "get", "tatoeba-en-de", "--cache", tmp_path)
    assert result.code == 0
    assert "CC BY 2.0 FR" in result.out
    assert result.out.splitlines()[-1].endswith("tatoeba-en-de")


def test_version(cli):
    assert cli("version").out == cli("--version").out == f"deepnet {__version__}\n"
    assert json.loads(cli("version", "--json").out)["deepnet"] == __version__


def test_every_verb_has_help_with_examples(cli):
    verbs = ["prepare", "train", "translate", "score", "evaluate", "compare", "average", "recipes"]
    for verb in [*verbs, "schemes", "coefficients", "data list", "data get"]:
        result = cli(*verb.split(), "--help")
        assert result.code == 0
        assert f"Examples:\n    deepnet {verb}" in result.out.replace("DEEPNET_DATA=x ", "")


def test_help_costs_at_most_300_milliseconds_beyond_python():
    measure = (
        "import resource, subprocess, sys;"
        "subprocess.run([sys.executable, *sys.argv[1:]], stdout=subprocess.DEVNULL, check=True);"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime)"
    )

    def cpu_seconds(*command):
        runs = [
            subprocess.run(
                [sys.executable, "-c", measure, *command], capture_output=True, check=True
            )
            for _ in range(5)
        ]
        return statistics.median(float(run.stdout) for run in runs)

    assert cpu_seconds("-m", "deepnet", "--help") - cpu_seconds("-c", "pass") <= 0.3
