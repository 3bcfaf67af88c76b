"""Verb `recipes`."""

from typing import Annotated, Any

import typer

from deepnet.cli.options import Json, examples
from deepnet.cli.output import Output, write_bytes

RECIPES_EXAMPLES = examples(
    "deepnet recipes",
    "deepnet recipes --json",
    "deepnet recipes own_files > mine.toml   # to start from",
)


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Recipe whose file is written out.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the recipes that come with deepnet, or write one out to start from.

    A name of the list can stand wherever a recipe can: `deepnet train NAME`. Task and size are read from the recipe,
    time and expected score are what its first lines say.
    """
    if name is None:
        _list(Output(as_json=as_json))
    else:
        _write_out(name, as_json=as_json)


def _list(output: Output) -> None:
    from deepnet.pipeline.recipe_table import recipe_table

    found = recipe_table()
    output.result(found, show=lambda: _show(output, found))


def _write_out(name: str, *, as_json: bool) -> None:
    from deepnet.pipeline.shipped import shipped_recipe

    path = shipped_recipe(name)
    if not as_json:
        write_bytes(path.read_bytes())
        return
    from deepnet.pipeline.recipe_table import describe_recipe

    found = {**describe_recipe(name), "text": path.read_text(encoding="utf-8")}
    Output(as_json=True).result(found, show=lambda: None)


def _show(output: Output, found: list[dict[str, Any]]) -> None:
    heads = ["recipe", "task", "layers", "width", "time", "expected"]
    output.table(heads, [_row(one) for one in found])
    output.say(
        "Time and score are shortened; --json has all of it. deepnet recipes NAME writes the file out."
    )


def _row(found: dict[str, Any]) -> list[object]:
    stacks = [found[f"{stack}_layers"] for stack in ("encoder", "decoder")]
    layers = " + ".join(str(count) for count in stacks if count)
    short = (found[name].partition(";")[0] for name in ("time", "expected"))
    return [found["name"], found["task"], layers, found["d_model"], *short]
