"""`deepnet scaling-law`: the law of run folders whose scores are known, and what it refuses to fit together."""

import itertools
import json
import math
import shutil

import pytest

import deepnet
from deepnet.errors import ConfigError

SLOPE, START = 2.0, 10.0


@pytest.fixture(scope="module")
def make_run(finished, tmp_path_factory):
    """Return a function (layers a side, bleu, loss, **recipe keys) -> a run folder that says it came to that."""
    folder = tmp_path_factory.mktemp("depths")

    def make(layers, bleu=None, loss=None, **changes):
        run = folder / str(len(list(folder.iterdir())))
        shutil.copytree(finished, run, ignore=shutil.ignore_patterns("bundle", "checkpoints"))
        recorded = json.loads((run / "recipe.json").read_text())
        model = recorded["recipe"]["model"]
        model["encoder_layers"] = model["decoder_layers"] = layers
        for key, value in changes.items():
            section, _, name = key.partition("__")
            recorded["recipe"][section][name] = value
        (run / "recipe.json").write_text(json.dumps(recorded))
        scores = json.loads((run / "outputs/test.scores.json").read_text())
        if bleu is None:
            shutil.rmtree(run / "outputs")
        else:
            (run / "outputs/test.scores.json").write_text(json.dumps({**scores, "bleu": bleu}))
        steps = [] if loss is None else [json.dumps({"step": 30, "validation_loss": loss}) + "\n"]
        (run / "metrics.jsonl").write_text("".join(steps))
        return run

    return make


def on_the_law(depth, slope=SLOPE):
    return slope * math.log(depth) + START


@pytest.fixture(scope="module")
def runs(make_run):
    return [
        make_run(n, on_the_law(2 * n) + off, on_the_law(2 * n, -0.5), training__seed=seed)
        for n in (1, 2, 4, 8)
        for seed, off in ((1, 0.1), (2, -0.1))
    ]


def test_the_law_of_runs(cli, runs, tmp_path):
    result = cli("scaling-law", *runs, "--at", 100, "--out", tmp_path / "law", "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert json.loads((tmp_path / "law" / "law.json").read_text()) == found
    assert (tmp_path / "law" / "figure.png").read_bytes()[:4] == b"\x89PNG"
    assert found["differences"] == []
    law = found["laws"]["bleu"]
    assert law["A"]["value"] == pytest.approx(SLOPE, abs=1e-12)
    assert law["at"]["100"]["value"] == pytest.approx(on_the_law(100), abs=1e-12)
    assert law["carries_law"]
    assert found["laws"]["loss"]["A"]["value"] == pytest.approx(-0.5, abs=1e-12)


def test_what_a_point_costs(runs):
    rows = deepnet.scaling_law(runs).rows("bleu")
    assert [(row.depth, row.num_runs) for row in rows] == [(2, 2), (4, 2), (8, 2), (16, 2)]
    d, ffn = 16, 32
    norms_and_biases = (5 + 4) * d + (4 + 4 + 1 + 6) * d + 2 * ffn
    pair = (4 + 8) * d * d + 2 * 2 * d * ffn + norms_and_biases  # an encoder and a decoder layer
    for below, row in itertools.pairwise(rows):
        added = (row.depth - below.depth) // 2 * pair
        assert row.cost.parameters - below.cost.parameters == added
        assert row.parameters_per_point == pytest.approx(added / (SLOPE * math.log(2)), rel=1e-9)
        assert row.flops_per_point > 0
    loss = deepnet.scaling_law(runs).rows("loss")[1]
    assert loss.parameters_per_point == pytest.approx(pair / (0.5 * math.log(2)), rel=1e-9)


def test_the_table(cli, runs):
    result = cli("scaling-law", *runs)
    assert result.code == 0, result.err
    assert "bleu = A ln d + B" in result.out
    assert "a run of 200 layers" in result.out
    assert result.out.count("the data carry the law") == 2
    assert "parameters per nat" in result.out


def test_other_differences_are_said(cli, make_run):
    schemes = {1: "post_ln", 2: "post_ln", 4: "deepnorm"}
    runs = [make_run(n, on_the_law(2 * n), scheme__name=s) for n, s in schemes.items()]
    result = cli("scaling-law", *runs)
    assert result.code == 0, result.err
    assert "the runs differ in scheme.name: post_ln in" in result.out
    assert "loss" not in result.out


def test_numbers_by_hand(cli):
    result = cli("scaling-law", "--points", "12:24.5,24:26.2,48:27.7", "--json")
    law = json.loads(result.out)["laws"]["score"]
    assert law["per_doubling"] == pytest.approx(1.6, abs=1e-12)
    assert law["at"]["200"]["value"] == pytest.approx(27.7 + 1.6 * math.log2(200 / 48) + 0.1 / 3)
    result = cli("scaling-law", "--points", "200:31.1,1000:32.1")
    assert "the data do not carry a law: there are 2 depths" in result.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "neither is given"),
        (["{run}", "--points", "6:1,12:2"], "both are given"),
        (["--points", "6=1"], "--points is '6=1'; expected depths and scores"),
        (["--points", "6:1"], "all have depth 6"),
        (["{run}"], "all have depth 2"),
        (["{run}", "{wide}"], "the runs differ in model.d_model (16 in "),
        (["{run}", "{other}"], "the runs differ in data.target_language (en in "),
        (["{run}", "{nothing}"], "has neither a score nor a validation yet"),
        (["{empty}"], "holds no run"),
    ],
)
def test_what_cannot_be_fitted(cli, make_run, tmp_path, arguments, words):
    made = {
        "run": lambda: make_run(1, 10.0),
        "wide": lambda: make_run(2, 11.0, model__d_model=32),
        "other": lambda: make_run(2, 11.0, data__target_language="fr"),
        "nothing": lambda: make_run(2),
        "empty": lambda: tmp_path,
    }
    filled = [
        made[argument[1:-1]]() if argument.startswith("{") else argument for argument in arguments
    ]
    result = cli("scaling-law", *filled)
    assert result.code == 2, result.err
    assert words in result.err
    assert len(result.err.splitlines()) == 1


def test_runs_of_another_text_are_not_mixed(make_run):
    runs = [make_run(n, 10.0 + n) for n in (1, 2)]
    kept = runs[1] / "data" / "preparation.json"
    summary = json.loads(kept.read_text())
    kept.write_text(json.dumps({**summary, "prepared": "another-0123456789abcdef"}))
    with pytest.raises(ConfigError, match=r"differ in prepared\.text"):
        deepnet.scaling_law(runs)
