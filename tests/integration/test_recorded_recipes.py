"""The recipe that a run folder has recorded, damaged in every section and key: a recipe, or one error of ours."""

import json

import pytest

from deepnet.errors import ConfigError, DeepNetError
from deepnet.pipeline.recipe import load_recipe
from deepnet.record import RunFolder

JUNK = (None, [], "x", -3, {})


@pytest.fixture
def run(tmp_path):
    """A run folder with nothing but its recipe."""
    recipe = load_recipe("demo").model_dump(mode="json")
    return RunFolder.create(tmp_path / "run", recipe=recipe)


def record(run, recipe):
    described = json.loads(run.recipe_path.read_text())
    run.recipe_path.write_text(json.dumps({**described, "recipe": recipe}))


def damaged(whole):
    """Yield the recipe without each section and key, and with junk in the place of each."""
    yield from JUNK
    for name, section in whole.items():
        yield {key: value for key, value in whole.items() if key != name}
        yield from ({**whole, name: junk} for junk in JUNK)
        for key in section:
            rest = {other: value for other, value in section.items() if other != key}
            yield {**whole, name: rest}
            yield from ({**whole, name: {**section, key: junk}} for junk in JUNK)


def test_a_damaged_recipe_is_refused_in_one_error_of_ours_or_harmless(run):
    whole = json.loads(run.recipe_path.read_text())["recipe"]
    refused = 0
    for recipe in damaged(whole):
        record(run, recipe)
        try:
            load_recipe(run.path)
        except DeepNetError:
            refused += 1
    assert refused > 300  # most junk is none of the key's values


@pytest.mark.parametrize("recipe", [None, [], {"schedule": None}])
def test_what_is_no_table_of_sections_is_said_with_the_file(run, recipe):
    record(run, recipe)
    with pytest.raises(ConfigError, match=r"recipe\.json is damaged: 'recipe' must be an object"):
        load_recipe(run.path)


def test_a_schedule_without_its_warm_up_has_the_default_one(run):
    whole = json.loads(run.recipe_path.read_text())["recipe"]
    del whole["schedule"]["warmup_init_lr"]
    record(run, whole)
    assert load_recipe(run.path).schedule.warmup_init_lr == 1e-7
