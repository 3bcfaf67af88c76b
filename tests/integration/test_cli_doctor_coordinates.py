"""`deepnet doctor --coordinates` on a tiny recipe: its numbers beside the probes', what it writes and refuses."""

import json
from statistics import median

import pytest

from deepnet.doctor.beside import layer_norms
from deepnet.doctor.case import make_case
from deepnet.doctor.growth import PLACES
from deepnet.doctor.proxy import at_depth
from deepnet.doctor.sizes import CHANGE
from deepnet.pipeline.measuring import make_recorder
from deepnet.pipeline.preparing import prepare_data
from deepnet.pipeline.recipe import load_recipe
from deepnet.training.engine.precision import Precision

LONG = "training.max_steps=500"
UPDATES = [1, 2, 5, 10]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("coordinates") / "new"


@pytest.fixture(scope="module")
def shown(cli, corpus, cache, folder):
    options = ("--coordinates", "--depths", "4,2", "--out", folder, "--cache", cache, "--json")
    result = cli("doctor", corpus / "recipe.toml", LONG, *options)
    assert result.code == 0, result.err
    return json.loads(result.out)


def line(shown, quantity, of, update):
    [found] = [
        one
        for one in shown["lines"]
        if (one["quantity"], one["of"], one["update"]) == (quantity, of, update)
    ]
    return found


def test_every_quantity_is_there_at_every_depth_and_update(shown):
    assert (shown["depths"], shown["updates"], shown["limit"]) == ([2, 4], UPDATES, 0.25)
    stacks = ("encoder", "decoder")
    layered = [f"{what} of the {stack}" for what in ("stream", "gradient") for stack in stacks]
    wanted = {(q, of, n) for q in layered for of in PLACES for n in UPDATES}
    wanted |= {(CHANGE, "median", n) for n in UPDATES}
    assert {(one["quantity"], one["of"], one["update"]) for one in shown["lines"]} == wanted
    assert all(set(one["sizes"]) == {"2", "4"} for one in shown["lines"])
    assert shown["trial"] == {
        "scheme": "deepnorm", "updates": 10, "of": 500, "warmup_steps": 10, "d_model": 16,
        "max_tokens": 256, "optimizer": "adam", "lr": 3e-3, "seed": 1,
    }  # fmt: skip


def test_the_numbers_are_those_of_the_probes_in_the_doctors_trial(shown, corpus, cache):
    recipe = at_depth(load_recipe(corpus / "recipe.toml", (LONG,)), 4)
    case = make_case(recipe, prepare_data(recipe, cache=cache), steps=200)
    model = case.model()
    assert [len(stack.layers) for stack in model.stacks()] == [4, 4]
    recorder = make_recorder(model, case.looked_at, precision=Precision("fp32", "cpu"))
    for reading in case.train(model, recorder, steps=10, at=UPDATES).readings:
        step = reading["step"]
        moved = reading["step_update"]["decoder"][-1]
        assert line(shown, CHANGE, "median", step)["sizes"]["4"] == pytest.approx(moved, rel=1e-4)
        for stack in ("encoder", "decoder"):
            norms = layer_norms(reading["gradient_norm"], stack)
            found = {
                of: line(shown, f"gradient of the {stack}", of, step)["sizes"]["4"]
                for of in ("first", "last", "median")
            }
            expected = {"first": norms[0], "last": norms[-1], "median": median(norms)}
            assert found == pytest.approx(expected, rel=1e-4)


def test_a_post_norms_stream_is_of_size_one_at_any_depth(shown):
    """Before any update its norms have gain 1, which ten updates at this rate move by less than a tenth."""
    for stack in ("encoder", "decoder"):
        found = line(shown, f"stream of the {stack}", "last", 1)
        assert found["sizes"]["4"] == pytest.approx(1.0, abs=0.1)
        assert found["exponent"] == pytest.approx(0.0, abs=0.1)


def test_picture_and_numbers_are_written(shown, folder):
    assert {path.name for path in folder.iterdir()} == {"coordinates.json", "coordinates.png"}
    assert json.loads((folder / "coordinates.json").read_text()) == shown
    assert (folder / "coordinates.png").read_bytes().startswith(b"\x89PNG")


def test_the_last_line_says_whether_rate_and_coefficients_carry_over(cli, corpus, cache, shown):
    options = ("--coordinates", "--depths", "2,4", "--cache", cache)
    result = cli("doctor", corpus / "recipe.toml", LONG, *options)
    assert result.out.splitlines()[-1] == shown["says"]
    assert "rate tuned at 2 layers" in shown["says"]
    assert "coefficients" in shown["says"]
    header = next(text for text in result.out.splitlines() if text.startswith("size of"))
    assert " ".join(header.split()) == "size of layer update 2 layers 4 layers exponent"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--depths", "2,4"], "--depths has no effect without --coordinates"),
        (["--out", "there"], "--out has no effect without --coordinates"),
        (["--coordinates", "--steps", "50"], "--steps has no effect with --coordinates"),
        (["--coordinates", "--depths", "two"], "--depths is 'two'; expected whole numbers"),
        (["--coordinates", "--depths", "6"], "depths are 6; expected at least two"),
        (["--coordinates", "--depths", "1,6"], "depths are 1, 6; expected at least two"),
        (["--coordinates", "--depths", "6,6"], "depths are 6, 6; expected at least two"),
        (["--coordinates", "--depths", "6,1001"], "from 2 to 1,000 layers"),
    ],
)
def test_wrong_use_is_one_line_and_code_2(cli, corpus, cache, options, words):
    result = cli("doctor", corpus / "recipe.toml", *options, "--cache", cache)
    assert (result.code, len(result.err.splitlines()), result.out) == (2, 1, "")
    assert words in result.err
