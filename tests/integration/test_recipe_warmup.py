"""A scheme trained without warm-up by its source is so here, unless the recipe says otherwise."""

from pathlib import Path

import pytest

from deepnet.pipeline.recipe import load_recipe
from deepnet.record import RunFolder
from deepnet.training.optimization.schedules import learning_rate, resolve_schedule


@pytest.fixture
def first_rates(tmp_path: Path):
    """Return a function (scheme, lines of [schedule]) -> the rates of updates 1 and 4001 of 8,000."""

    def rates(scheme: str, *schedule: str) -> tuple[float, float]:
        path = tmp_path / "recipe.toml"
        text = ["[data]", 'corpus = "tatoeba-en-de"', "[scheme]", f'name = "{scheme}"']
        text += ["[optimizer]", "lr = 5e-4", "[training]", "max_steps = 8000", "[schedule]"]
        path.write_text("\n".join([*text, *schedule]))
        config = resolve_schedule(load_recipe(path).schedule, max_steps=8000)
        return tuple(learning_rate(step, peak=5e-4, config=config) for step in (0, 4000))

    return rates


def test_t_fixup_starts_at_the_peak_and_falls_from_update_4000_on(first_rates):
    assert first_rates("t_fixup") == (5e-4, 5e-4)
    assert first_rates("deepnorm") == (1e-7, 5e-4)


def test_a_linear_schedule_has_no_warm_up_at_all(first_rates):
    start, middle = first_rates("t_fixup", 'name = "linear"')
    assert start == 5e-4
    assert middle == pytest.approx(2.5e-4)


def test_a_recipe_that_asks_for_a_warm_up_gets_it(first_rates):
    assert first_rates("t_fixup", "warmup_steps = 8000") == (1e-7, pytest.approx(2.5e-4, rel=1e-3))


@pytest.mark.parametrize("schedule", ["warmup_steps = 4000", 'name = "cosine"', ""])
@pytest.mark.parametrize("scheme", ["t_fixup", "deepnorm"])
def test_the_recipe_of_a_run_folder_is_the_recipe_that_ran(tmp_path, scheme, schedule):
    path = tmp_path / "recipe.toml"
    path.write_text(
        f'[data]\ncorpus = "tatoeba-en-de"\n[scheme]\nname = "{scheme}"\n'
        f"[training]\nmax_steps = 8000\n[schedule]\n{schedule}\n"
    )
    recipe = load_recipe(path)
    run = RunFolder.create(tmp_path / "run", recipe=recipe.model_dump())
    assert load_recipe(run.path) == recipe
