"""Settings that are compared by one number: which line ends below which, at which seed."""

import math

import pytest
from made_cells import made_cells

from deepnet.experiments.figures.branchnorm_figure1 import Study as Shallow
from deepnet.experiments.figures.branchnorm_figure7 import Study as Growth
from deepnet.experiments.figures.branchnorm_figure8 import Study as Alike
from deepnet.experiments.figures.deepnet_figure6 import Study as Depth


def ends(name: str, values: dict[tuple[str, int], float]) -> dict:
    """Return readings that start at three times the number and end at it."""
    return {
        place: [{"step": 0, name: 3 * end}, {"step": 2, name: end}] for place, end in values.items()
    }


@pytest.mark.parametrize(
    ("post_ln", "deepnorm", "answer"),
    [(2.0, 2.1, "holds"), (2.1, 2.0, "does not"), (2.0, 2.0, "cannot be told")],
)
def test_the_last_reading_is_judged_at_the_same_depth_and_seed(post_ln, deepnorm, answer):
    study = Shallow(depths=(6,), updates=(2,))
    losses = ends("loss", {("Post-LN", 6): post_ln, ("DeepNorm", 6): deepnorm})
    assert study.verdict(made_cells(study, losses)).answer == answer


def test_losses_are_compared_as_perplexities():
    study = Shallow(depths=(6,), updates=(2,))
    losses = ends("loss", {("Post-LN", 6): 2.0, ("DeepNorm", 6): 2.5})
    (finding,) = study.verdict(made_cells(study, losses)).findings
    assert finding.values == pytest.approx([math.exp(0.5 * (1 + s / 100)) for s in (1, 2, 3)])


@pytest.mark.parametrize(("deep", "answer"), [(2.0, "holds"), (2.01, "holds"), (2.1, "does not")])
def test_a_scheme_is_compared_with_itself_at_another_depth(deep, answer):
    study = Depth(depths=(6, 18), updates=(2,))
    losses = {("DeepNorm", 6): 2.0, ("DeepNorm", 18): deep, ("Post-LN", 18): 3.0}
    verdict = study.verdict(made_cells(study, ends("loss", losses)))
    assert verdict.answer == answer
    assert "DeepNorm at 18L-18L over DeepNorm at 6L-6L" in verdict.findings[0].what


@pytest.mark.parametrize(
    ("other", "answer"), [(2.02, "holds"), (2.2, "does not"), (1.8, "does not")]
)
def test_insensitive_is_close_on_both_sides(other, answer):
    study = Growth(updates=(2,))
    losses = {(line, 18): 2.0 for line in study.lines} | {("exp", 18): other}
    assert study.verdict(made_cells(study, ends("loss", losses))).answer == answer


def test_layers_are_less_alike_where_the_cosine_is_smaller():
    study = Alike(updates=(2,))
    cosines = {("DeepNorm", 18): 0.9, ("BranchNorm", 18): 0.7}
    found = study.verdict(made_cells(study, ends("similarity", cosines)))
    assert found.answer == "holds"
    assert found.findings[0].values == pytest.approx(
        [(1 - 0.7 * (1 + s / 100)) / (1 - 0.9 * (1 + s / 100)) for s in (1, 2, 3)]
    )


def test_a_table_has_every_reading_and_a_picture_every_depth():
    study = Depth(depths=(6, 18), updates=(2,))
    losses = {(line, n): 2.0 for line in study.lines for n in study.depths}
    cells = made_cells(study, ends("loss", losses))
    table = study.table(cells)
    assert "| DeepNorm | 6.12 [6.06, 6.18] | 2.04 [2.02, 2.06] |" in table
    assert [line for line in table.splitlines() if line.endswith("L")] == ["6L-6L", "18L-18L"]
    drawn = study.draw(cells)
    assert [axes.get_title(loc="left") for axes in drawn.axes] == ["6L-6L", "18L-18L", "after 2"]
    assert all(len(axes.lines) == len(study.lines) for axes in drawn.axes)
