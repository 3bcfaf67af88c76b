"""Verb `doctor`."""

from typing import TYPE_CHECKING, Annotated

import typer

from deepnet.cli.options import Cache, Json, Overrides, RecipePath, cache_folder, examples
from deepnet.cli.output import Output

if TYPE_CHECKING:
    from deepnet.doctor import Diagnosis

DOCTOR_EXAMPLES = examples(
    "deepnet doctor demo",
    "deepnet doctor demo scheme.name=post_ln --json",
    "deepnet doctor mine.toml model.encoder_layers=50 model.decoder_layers=50 --steps 400",
)
Steps = Annotated[
    int, typer.Option("--steps", metavar="N", help="Updates of the trial; more tell more.")
]


def doctor(
    recipe: RecipePath,
    overrides: Overrides = None,
    steps: Steps = 200,
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """Tell before a run whether its model will train, from real updates of a narrow one of the same depth.

    Prepares the text, and trains on the CPU for minutes. What it says is a risk, not a promise: docs/doctor.md says
    how often it was right.
    """
    from deepnet.doctor import examine_recipe
    from deepnet.pipeline.recipe import load_recipe

    output = Output(as_json=as_json)
    found = examine_recipe(
        load_recipe(recipe, overrides or ()),
        steps=steps,
        cache=cache_folder(cache),
        report=output.say,
    )
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
    trial = ", ".join(f"{key} {value}" for key, value in found.trial.items())
    output.say(f"trial: {trial}")
    output.say(f"risk from {found.risk_from}")
