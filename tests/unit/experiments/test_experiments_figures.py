"""What each figure makes of cells whose numbers are made up."""

from dataclasses import replace

import pytest
from made_cells import made_cells

from deepnet.experiments.catalogue import experiment_class, experiment_table, list_experiments
from deepnet.experiments.cells import cost
from deepnet.experiments.figures.branchnorm_figure3 import Study as VeryStart
from deepnet.experiments.figures.deepnet_figure3 import Study as PostLnInit
from deepnet.experiments.figures.deepnet_figure4 import AIDED, BARE
from deepnet.experiments.figures.deepnet_figure4 import Study as Warmup
from deepnet.experiments.figures.deepnet_figure5 import Study as ModelUpdate
from deepnet.experiments.pictures import save_picture
from deepnet.experiments.reproduce import page


def updates(post_ln: dict[int, float], deepnorm: dict[int, float]) -> dict:
    lines = {"Post-LN": post_ln, "DeepNorm": deepnorm}
    return {
        (line, layers): [{"step": 1, "update": value}]
        for line, by_depth in lines.items()
        for layers, value in by_depth.items()
    }


@pytest.mark.parametrize(
    ("post_ln", "deepnorm", "answer"),
    [
        ({6: 0.1, 100: 1.0}, {6: 0.1, 100: 0.12}, "holds"),
        ({6: 0.1, 100: 1.0}, {6: 0.1, 100: 0.3}, "does not"),  # DeepNorm's grows, too
        ({6: 0.2, 100: 0.3}, {6: 0.1, 100: 0.12}, "does not"),  # Post-LN's does not
        ({6: 0.01, 100: 0.1}, {6: 0.2, 100: 0.2}, "does not"),  # and is the smaller
        ({6: 0.1, 100: None}, {6: 0.1, 100: 0.12}, "cannot be told"),  # diverged
    ],
)
def test_figure5_judges_the_growth_of_both_and_who_ends_lower(post_ln, deepnorm, answer):
    study = ModelUpdate(depths=(6, 100), updates=(1,))
    assert study.verdict(made_cells(study, updates(post_ln, deepnorm))).answer == answer


def test_figure5_compares_at_the_same_seed():
    study = ModelUpdate(depths=(6, 100), updates=(1,))
    cells = made_cells(study, updates({6: 0.1, 100: 1.0}, {6: 0.1, 100: 0.2}))
    for finding, factor in zip(study.verdict(cells).findings, (2.0, 10.0, 5.0), strict=True):
        assert finding.values == pytest.approx([factor] * 3)  # whatever the seed multiplies


def test_figure5_needs_three_seeds_and_both_ends():
    study = ModelUpdate(depths=(6, 100), updates=(1,))
    found = updates({6: 0.1, 100: 1.0}, {6: 0.1, 100: 0.12})
    few = replace(study, seeds=(1, 2))
    assert few.verdict(made_cells(few, found)).answer == "cannot be told"
    half = {place: one for place, one in found.items() if place[1] == 6}
    assert study.verdict(made_cells(study, half)).answer == "cannot be told"


@pytest.mark.parametrize("name", list_experiments())
def test_a_picture_can_be_drawn_of_nothing(name, tmp_path):
    study = experiment_class(name)()
    save_picture(study.draw([]), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert study.verdict([]).answer == "cannot be told"
    assert study.table([]).count("| - |") > 1


def start(gradients: list[float], *, loss: float) -> list[dict]:
    """Return figure 3's readings: gradients of the decoder's layers before training, a loss after it."""
    row = {"layer_gradient": {"decoder": gradients}}
    return [{"step": 0, "loss": 9.0, **row}, {"step": 5, "loss": loss, **row}]


@pytest.mark.parametrize(
    ("shallow", "deep", "losses", "answers"),
    [
        ([1.0, 2.0], [1.0, 1.0, 3.0], (6.0, 5.0), ["holds", "holds", "holds", "holds"]),
        ([1.0, 0.5], [1.0, 1.0, 3.0], (6.0, 5.0), ["holds", "does not", "holds", "holds"]),
        ([1.0, 2.0], [0.5, 0.5, 0.5], (5.0, 6.0), ["does not", "holds", "does not", "does not"]),
    ],
)
def test_figure3_compares_gradients_at_every_depth_and_what_is_learned(
    shallow, deep, losses, answers
):
    study = PostLnInit(depths=(2, 3), trained=3, updates=(5,))
    cells = {
        ("Post-LN", 2): start([1.0, 1.0], loss=8.0),
        ("Post-LN", 3): start([1.0, 1.0, 1.0], loss=losses[0]),
        ("Post-LN-init", 2): start(shallow, loss=8.0),
        ("Post-LN-init", 3): start(deep, loss=losses[1]),
    }
    found = study.verdict(made_cells(study, cells)).findings
    assert [finding.answer for finding in found] == answers


def test_figure3_pools_the_top_layers_and_takes_the_last_of_each_depth():
    study = PostLnInit(depths=(2, 3), trained=3, updates=(5,))
    cells = {
        ("Post-LN", 2): start([1.0, 1.0], loss=8.0),
        ("Post-LN", 3): start([2.0, 3.0, 6.0], loss=6.0),  # 7 together
        ("Post-LN-init", 2): start([1.0, 4.0], loss=8.0),
        ("Post-LN-init", 3): start([4.0, 6.0, 12.0], loss=6.0),
    }
    top, shallow, deep, _ = study.verdict(made_cells(study, cells)).findings
    assert top.values == pytest.approx([2.0] * 3)
    assert shallow.values == pytest.approx([4.0] * 3)
    assert deep.values == pytest.approx([2.0] * 3)


def moment(update: float, entering: float, gradient: float) -> list[dict]:
    sites = {f"decoder.{site}": [entering, entering] for site in ("self", "cross", "ffn")}
    row = {"layer_gradient": {"decoder": [gradient, gradient]}, "norm_input": sites}
    return [{"step": step, "update": update, **row} for step in (1, 2)]


@pytest.mark.parametrize(
    ("bare", "answer"),
    [
        (moment(1.0, 3.0, 1e-9), "holds"),
        (moment(0.05, 3.0, 1e-9), "does not"),  # it does not explode
        (moment(1.0, 1.0, 1e-9), "does not"),  # what enters the norms does not grow
        (moment(1.0, 3.0, 1.0), "does not"),  # its gradients do not vanish
    ],
)
def test_figure4_wants_all_three_signs_beside_both_aids(bare, answer):
    study = Warmup(layers=2, updates=(1, 2), early=1)
    cells = {(line, 2): moment(0.1, 1.4, 0.5) for line in AIDED} | {(BARE, 2): bare}
    assert study.verdict(made_cells(study, cells)).answer == answer


def beginning(gradients: list[float], loss: float) -> list[dict]:
    return [{"step": n, "gradient": g, "loss": loss} for n, g in enumerate(gradients)]


@pytest.mark.parametrize(
    ("gradients", "loss", "answer"),
    [
        ([1.0, 1.1, 1.0], 8.0, "holds"),
        ([1.0, 9.0, 1.0], 8.0, "does not"),  # rougher
        ([1.0, 1.1, 1.0], 9.0, "does not"),  # smoother, and behind
    ],
)
def test_branchnorms_figure3_wants_a_smoother_gradient_at_no_cost(gradients, loss, answer):
    study = VeryStart(layers=1, updates=(1, 2))
    rivals = {(line, 1): beginning([1.0, 2.0, 1.0], 8.0) for line in ("Post-LN", "DeepNorm")}
    cells = {**rivals, ("BranchNorm", 1): beginning(gradients, loss)}
    assert study.verdict(made_cells(study, cells)).answer == answer


def test_roughness_is_in_parts_and_not_in_units():
    study = VeryStart(layers=1, updates=(1, 2))
    rivals = {(line, 1): beginning([1.0, 2.0, 1.0], 8.0) for line in ("Post-LN", "DeepNorm")}
    cells = {**rivals, ("BranchNorm", 1): beginning([50.0, 100.0, 50.0], 8.0)}
    rough = study.verdict(made_cells(study, cells)).findings[0]
    assert rough.values == pytest.approx([1.0] * 3)


def test_a_page_has_claim_answer_numbers_and_command():
    study = ModelUpdate(depths=(6, 100), updates=(1,))
    cells = made_cells(study, updates({6: 0.1, 100: 1.0}, {6: 0.1, 100: 0.12}))
    text = page(study, cells, name="deepnet-figure5")
    assert text.startswith("# deepnet-figure5: holds\n")
    assert study.claim in text
    assert "| Post-LN | 100L-100L | 1.02 [1.01, 1.03] |" in text
    assert "`deepnet reproduce deepnet-figure5 --seeds 1,2,3`" in text


def test_every_file_of_the_folder_is_listed_with_claim_source_and_hours():
    rows = experiment_table()
    assert [row["name"] for row in rows] == list_experiments()
    assert all(all(row.values()) for row in rows)


@pytest.mark.parametrize("name", list_experiments())
def test_a_grid_has_each_cell_once_and_the_whole_one_is_larger(name):
    kind = experiment_class(name)
    default, whole = kind(), kind.full()
    for study in (default, whole):
        names = [cell.name for cell in study.cells()]
        assert len(set(names)) == len(names)
        assert len(study.seeds) >= 3
        assert max(study.steps()) == max(cell.updates for cell in study.cells())
    whole_cost, default_cost = (sum(cost(s, c) for c in s.cells()) for s in (whole, default))
    assert whole_cost > default_cost


@pytest.mark.parametrize("name", list_experiments())
def test_the_recipe_of_every_cell_can_be_built(name):
    for study in (experiment_class(name)(), experiment_class(name).full()):
        recipes = [study.recipe(cell) for cell in study.cells()]
        assert {r.model.d_model for r in recipes} <= {64, 96, 128, 512, 768, 1024}
        assert all(r.ends.embedding_lr_multiplier == 1.0 for r in recipes)
