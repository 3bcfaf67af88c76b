"""The measurements that come with the package are those that results/ has, and all of them."""

import json
from pathlib import Path

from deepnet.schemes.catalogue import list_schemes
from deepnet.survey.evidence import evidence_setting, read_evidence

METRICS = Path(__file__).parents[3] / "results" / "scheme_grid" / "metrics.json"
AGAIN = "out of date: python benchmarks/scheme_grid.py --out RUNS --render writes both"


def test_every_cell_of_the_grid_is_shown_and_nothing_else():
    cells = json.loads(METRICS.read_text())["cells"]
    found = {
        (row["task"], name, row["rate"], seed): loss
        for name in list_schemes()
        for row in read_evidence(name)
        for seed, loss in row["losses"].items()
    }
    measured = {
        (cell["task"], cell["scheme"], cell["rate"], str(cell["seed"])): (
            round(cell["losses"][max(cell["losses"], key=int)], 3) if cell["losses"] else None
        )
        for cell in cells
    }
    assert found == measured, AGAIN
    assert len(found) == len(cells)


def test_what_became_of_a_run_is_said_for_each_seed():
    cells = json.loads(METRICS.read_text())["cells"]
    for name in list_schemes():
        for row in read_evidence(name):
            same = [cell for cell in cells if cell["scheme"] == name]
            same = [c for c in same if (c["task"], c["rate"]) == (row["task"], row["rate"])]
            assert set(row["outcome"].split(", ")) == {cell["outcome"] for cell in same}, AGAIN


def test_where_and_how_it_was_measured_is_said():
    metrics, setting = json.loads(METRICS.read_text()), evidence_setting()
    assert setting["commit"] == metrics["commit"], AGAIN
    assert setting["device"] == metrics["device"]
    assert setting["torch"] == metrics["versions"]["torch"]
    for task, (entropy, odds) in metrics["word_entropy_and_equal_odds"].items():
        assert setting["tasks"][task]["word_entropy"] == round(entropy, 3)
        assert setting["tasks"][task]["equal_odds"] == round(odds, 3)


def test_a_scheme_that_was_never_run_has_nothing_to_show():
    assert read_evidence("my_module:Scheme") == []
