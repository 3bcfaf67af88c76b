"""The study of DeepNet's Table 1: its labels, its baseline, and the calibration of the risk."""

import pytest

import doctor
from deepnet.doctor.risk import shipped_weights


def test_the_labels_are_those_of_the_table():
    cells = doctor.all_cells()
    assert len(cells) == 40
    rows = [{"scheme": c.scheme, "layers": c.layers, "diverged": c.diverged} for c in cells]
    assert sum(row["diverged"] for row in rows) == 15
    assert sum(doctor.named_baseline(row) == row["diverged"] for row in rows) == 33


def test_a_cell_is_the_papers_recipe_at_its_depth():
    recipe = doctor.Cell("rezero", 50).recipe()
    assert (recipe.model.encoder_layers, recipe.model.decoder_layers) == (50, 50)
    assert (recipe.optimizer.lr, recipe.schedule.warmup_steps) == (5e-4, 4000)
    assert recipe.schedule.warmup_init_lr == 1e-7
    assert doctor.Cell("post_ln", 6).recipe().optimizer.lr == 1.5e-3


def row(diverged, scheme="a", **excess):
    signs = {**dict.fromkeys(shipped_weights().signs, -3.0), **excess}
    return {"diverged": diverged, "scheme": scheme, "layers": 6, "signs": signs}


def test_a_calibration_takes_the_sign_that_tells_and_no_weight_below_zero():
    bad = [row(True, scheme, token_mean_energy=1.0) for scheme in "abc"]
    good = [row(False, scheme, step_update=0.5) for scheme in "abcdef"]
    found = doctor.calibrate([*bad, *good])
    assert min(found.signs.values()) >= 0
    assert found.signs["token_mean_energy"] > 1
    assert found.signs["step_update"] == pytest.approx(0, abs=1e-3)
    assert doctor.risk_by(found, bad[0]) > 0.6 > 0.4 > doctor.risk_by(found, good[0])


def test_a_scheme_is_left_out_of_the_weights_that_judge_it():
    """A sign that only one scheme shows has no weight when that scheme is left out."""
    rows = [row(False, scheme) for scheme in "abcd"]
    rows += [row(True, "b", layer_gradient=2.0), row(True, "e", token_mean_energy=2.0)]
    judged = [risk for one, risk in doctor.left_out(rows, "scheme") if one["scheme"] == "e"]
    assert judged == [pytest.approx(doctor.risk_by(doctor.calibrate(rows[:5]), rows[5]))]


def test_with_one_outcome_nothing_is_calibrated():
    """As at 6 layers a side, where all train."""
    rows = [{**row(False, scheme), "risk": 0.05} for scheme in ("post_ln", "deepnorm")]
    assert list(doctor.summary(rows)) == [
        "the doctor, as it is shipped", "by naming the scheme", "that all train",
    ]  # fmt: skip
    assert doctor.summary(rows)["the doctor, as it is shipped"] == {
        "right": 2, "of": 2, "brier": 0.0025,
    }  # fmt: skip
