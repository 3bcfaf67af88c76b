"""Verb `doctor`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepnet.cli.options import (
    Cache,
    Json,
    Overrides,
    RecipePath,
    cache_folder,
    examples,
    whole_numbers,
)
from deepnet.cli.output import Output

if TYPE_CHECKING:
    from deepnet.doctor import DepthCheck, Diagnosis

DOCTOR_EXAMPLES = examples(
    "deepnet doctor demo",
    "deepnet doctor demo scheme.name=post_ln --json",
    "deepnet doctor mine.toml model.encoder_layers=50 model.decoder_layers=50 --steps 400",
    "deepnet doctor demo --coordinates --out runs/coordinates   # does its rate fit other depths?",
    "deepnet doctor demo scheme.name=pre_ln --coordinates --depths 6,12,24,48",
)
Steps = Annotated[
    int | None,
    typer.Option(
        "--steps", metavar="N", help="Updates of the trial; more tell more.", show_default="200"
    ),
]
Coordinates = Annotated[
    bool,
    typer.Option(
        "--coordinates",
        help="Compare depths instead: sizes of stream, gradients and change of the output after 1 to 10 updates.",
    ),
]
Depths = Annotated[
    str | None,
    typer.Option(
        "--depths",
        metavar="N,N,...",
        help="Layers of each stack, up to 1000, for --coordinates.",
        show_default="6,18,50,100",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Where picture and numbers of --coordinates go; by default they are only shown.",
        show_default=False,
    ),
]


def doctor(
    recipe: RecipePath,
    overrides: Overrides = None,
    steps: Steps = None,
    coordinates: Coordinates = False,
    depths: Depths = None,
    out: Out = None,
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """Tell before a run whether its model will train, from real updates of a narrow one of the same depth.

    Prepares the text, and trains on the CPU for minutes. What it says is a risk, not a promise: docs/doctor.md says
    how often it was right. With --coordinates it tells whether rate and coefficients carry over from a shallow model
    to a deep one.
    """
    from deepnet.pipeline.recipe import load_recipe

    _refuse_without_effect(coordinates, steps=steps, depths=depths, out=out)
    output = Output(as_json=as_json)
    loaded, folder = load_recipe(recipe, overrides or ()), cache_folder(cache)
    if coordinates:
        _compare_depths(output, loaded, depths=depths, out=out, cache=folder)
        return
    from deepnet.doctor import examine_recipe
    from deepnet.doctor.trial import STEPS

    number = STEPS if steps is None else steps
    found = examine_recipe(loaded, steps=number, cache=folder, report=output.say)
    output.result(found.to_dict(), show=lambda: show_diagnosis(output, found))


def show_diagnosis(output: Output, found: "Diagnosis") -> None:
    """Show a verdict, what it rests on, and what to change."""
    output.say()
    output.heading(f"{found.verdict}, risk {found.risk:.2f}")
    output.say()
    rows = [row.to_dict() for row in found.evidence]
    output.table(
        ["evidence", "value", "limit"], [(r["what"], r["value"], r["limit"]) for r in rows]
    )
    output.say()
    for text in found.advice:
        output.say(f"advice: {text}")
    output.say(f"trial: {_listed(found.trial)}")
    output.say(f"risk from {found.risk_from}")


def _compare_depths(
    output: Output, recipe: Any, *, depths: str | None, out: Path | None, cache: Path
) -> None:
    from deepnet.doctor import check_depths
    from deepnet.doctor.coordinates import DEPTHS
    from deepnet.experiments.depth_picture import write_depth_check

    asked = DEPTHS if depths is None else whole_numbers(depths, option="--depths")
    found = check_depths(recipe, asked, cache=cache, report=output.say)
    if out:
        write_depth_check(found, out)
        output.say(f"picture and numbers: {out / 'coordinates.png'}, {out / 'coordinates.json'}")
    output.result(found.to_dict(), show=lambda: _show_depths(output, found))


def _show_depths(output: Output, found: "DepthCheck") -> None:
    output.say()
    output.table(
        ["size of", "layer", "update", *(f"{n} layers" for n in found.depths), "exponent"],
        [
            (line.quantity, line.of, line.update, *line.sizes.values(), line.exponent)
            for line in found.lines
        ],
    )
    output.say()
    output.say(f"trial: {_listed(found.trial)}")
    output.heading(found.says())


def _listed(trial: Any) -> str:
    return ", ".join(f"{key} {value}" for key, value in trial.items())


def _refuse_without_effect(
    coordinates: bool, *, steps: object, depths: object, out: object
) -> None:
    """Raise ConfigError for an option that would do nothing."""
    from deepnet.errors import ConfigError

    idle = {"--steps": steps} if coordinates else {"--depths": depths, "--out": out}
    for option, value in idle.items():
        if value is not None:
            there = "with" if coordinates else "without"
            raise ConfigError(f"{option} has no effect {there} --coordinates; leave it out")
