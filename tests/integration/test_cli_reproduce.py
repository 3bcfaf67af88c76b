"""`deepnet reproduce` on a toy grid: listed, run, gone on with, refused."""

import json
from dataclasses import replace

import pytest

from deepnet.errors import ConfigError
from deepnet.experiments import cells as cells_module
from deepnet.experiments.catalogue import experiment_class, list_experiments
from deepnet.experiments.figures.deepnet_figure5 import Study
from deepnet.experiments.reproduce import reproduce, run_experiment
from deepnet.record import read_jsonl


@pytest.fixture
def toy(corpus):
    """Return the settings of a text and a width of seconds."""
    return (
        "data.corpus=''",
        f"data.train_source={corpus / 'text.de'}",
        f"data.train_target={corpus / 'text.en'}",
        "tokenizer.vocab_size=36",
        "batching.max_tokens=256",
        "model.d_model=16",
        "model.ffn_dim=16",
    )


@pytest.fixture
def study(toy):
    return Study(depths=(1, 2), updates=(1, 3), settings=toy)


def test_the_list_has_claim_source_and_hours(cli):
    listed = cli("reproduce", "--list")
    assert listed.code == 0
    for name in list_experiments():
        kind = experiment_class(name)
        assert all(text in listed.out for text in (name, kind.claim, kind.source, kind.hours))
    rows = json.loads(cli("reproduce", "--list", "--json").out)
    assert [row["name"] for row in rows] == list_experiments()


def test_the_list_of_a_name_has_that_one_alone(cli):
    rows = json.loads(cli("reproduce", "deepnet-figure5", "--list", "--json").out)
    assert [row["name"] for row in rows] == ["deepnet-figure5"]


def test_a_misspelt_name_is_answered_with_the_nearest(cli):
    found = cli("reproduce", "deepnet-figure55")
    assert found.code == 2
    assert "there is no experiment 'deepnet-figure55'; did you mean 'deepnet-figure5'?" in found.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--seeds", "one"), "--seeds is 'one'; expected whole numbers, such as 1,2,3"),
        (("--seeds", "1,1"), "seeds are 1, 1; expected different whole numbers"),
        (("--processes", "0"), "processes is 0; expected at least 1"),
    ],
)
def test_wrong_use_is_refused_before_anything_runs(cli, tmp_path, arguments, said):
    found = cli("reproduce", "deepnet-figure5", "--out", tmp_path / "out", *arguments)
    assert (found.code, found.out) == (2, "")
    assert said in found.err
    assert not (tmp_path / "out").exists()


def test_a_grid_is_run_once_and_gone_on_with(study, cache, tmp_path):
    said = []
    first = replace(study, seeds=(1,))
    found = run_experiment(
        first, name="toy", out=tmp_path, device="cpu", cache=cache, report=said.append
    )
    assert (found.num_finished, found.num_cells) == (4, 4)
    assert found.verdict.answer == "cannot be told"
    assert said[-1].startswith("4 of 4: deepnorm_2L_seed1; ")
    assert said[-1].endswith(" layers x updates a second, 0:00 left")
    kept = (tmp_path / "cells.jsonl").read_bytes()
    found = run_experiment(
        study, name="toy", out=tmp_path, processes=2, device="cpu", cache=cache, report=said.append
    )
    assert "4 of 12 cells are done" in said
    assert found.num_finished == 12
    assert (tmp_path / "cells.jsonl").read_bytes().startswith(kept)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["verdict"] == found.verdict.to_dict()
    cells = read_jsonl(tmp_path / "cells.jsonl")
    assert len({cell["name"] for cell in cells}) == len(cells) == 12
    for cell in cells:
        assert [reading["step"] for reading in cell["readings"]] == [1, 3]
        moved = [reading["update"] for reading in cell["readings"]]
        assert 0 < moved[0] < moved[1]  # the warm-up's rate rises from update to update
    assert (tmp_path / "table.md").read_text().startswith("# toy: ")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


GRIDS = {
    "deepnet-figure3": {"depths": (1, 2), "trained": 2, "updates": (2, 3)},
    "deepnet-figure4": {"layers": 1, "updates": (1, 3), "early": 1},
    "deepnet-figure5": {"depths": (1, 2), "updates": (1, 3)},
    "deepnet-figure6": {"depths": (1, 2), "updates": (1, 2)},
    "deepnet-figure7": {"depths": (1,), "updates": (1, 2)},
    "branchnorm-figure1": {"depths": (1, 2), "updates": (1, 2)},
    "branchnorm-figure3": {"layers": 1, "updates": (1, 2)},
    "branchnorm-figure4": {"depths": (1,), "updates": (1, 2)},
    "branchnorm-figure6": {"depths": (1,), "updates": (1, 2)},
    "branchnorm-figure7": {"depths": (1,), "updates": (1, 2)},
    "branchnorm-figure8": {"depths": (2,), "updates": (1, 2)},
    "branchnorm-figure9": {"depths": (1,), "updates": (1, 2)},
}


def test_every_experiment_has_a_toy_grid():
    assert sorted(GRIDS) == list_experiments()


@pytest.mark.parametrize("name", GRIDS)
def test_every_experiment_runs_to_a_verdict(name, toy, cache, tmp_path):
    study = experiment_class(name)(**GRIDS[name], sentences=4, settings=toy)
    found = run_experiment(
        study, name=name, out=tmp_path, device="cpu", cache=cache, report=lambda line: None
    )
    assert found.num_finished == found.num_cells
    assert all(len(finding.values) == 3 for finding in found.verdict.findings)
    assert all(finding.interval is not None for finding in found.verdict.findings)
    table = (tmp_path / "table.md").read_text()
    assert table.startswith(f"# {name}: {found.verdict.answer}\n")
    assert "| - |" not in table
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_gives_the_same_numbers_in_a_process_of_its_own(study, cache, tmp_path):
    one = replace(study, depths=(1,), seeds=(5,))
    for out, processes in (("here", 1), ("elsewhere", 2)):
        run_experiment(
            one, name="toy", out=tmp_path / out, processes=processes, device="cpu", cache=cache,
            report=lambda line: None,
        )  # fmt: skip
    here, elsewhere = (
        {cell["name"]: cell["readings"] for cell in read_jsonl(tmp_path / out / "cells.jsonl")}
        for out in ("here", "elsewhere")
    )
    assert here == elsewhere


def test_what_is_finished_is_written_when_it_is_interrupted(study, cache, tmp_path, monkeypatch):
    run_cell = cells_module.run_cell

    def interrupted(experiment, cell, *rest):
        if cell.line == "DeepNorm":
            raise KeyboardInterrupt
        return run_cell(experiment, cell, *rest)

    monkeypatch.setattr(cells_module, "run_cell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(study, name="toy", out=tmp_path, device="cpu", cache=cache, report=print)
    assert "1 of 12 cells." in (tmp_path / "table.md").read_text()


def test_cells_of_another_grid_are_not_mixed_in(study, cache, tmp_path):
    one = replace(study, depths=(1,), seeds=(1,))
    run_experiment(one, name="toy", out=tmp_path, device="cpu", cache=cache, report=print)
    longer = replace(one, updates=(1, 3, 4))
    with pytest.raises(ConfigError, match="is of another grid than this one; choose another"):
        run_experiment(longer, name="toy", out=tmp_path, device="cpu", cache=cache, report=print)


def test_python_refuses_what_the_command_does(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'deepnet-figure5'"):
        reproduce("deepnet-figure55", out=tmp_path)
