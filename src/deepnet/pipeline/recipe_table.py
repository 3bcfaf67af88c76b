"""The shipped recipes at a glance: what each learns, how large it is, how long it takes and to which score."""

import re
from typing import Any

from deepnet.pipeline.recipe import Recipe, load_recipe
from deepnet.pipeline.shipped import list_recipes, shipped_recipe

HEADER = ("command", "hardware", "time", "expected")
"""What the comment at the head of every shipped recipe says, because no key of a recipe can."""
_TASKS = {
    "encoder_decoder": "translation",
    "decoder_only": "next token",
    "encoder_only": "masked tokens",
}
_FIELD = re.compile(rf"# ({'|'.join(HEADER)})  +(\S.*)")
_CONTINUED = re.compile(r"#    +(\S.*)")


def recipe_table() -> list[dict[str, Any]]:
    """Return what `describe_recipe` says of every shipped recipe, in alphabetical order."""
    return [describe_recipe(name) for name in list_recipes()]


def describe_recipe(name: str) -> dict[str, Any]:
    """Return name, title, task, scheme, size and the header's fields of a shipped recipe.

    The size is encoder_layers, decoder_layers and d_model. Raises ConfigError, with the nearest name, where there is
    no such recipe.
    """
    path = shipped_recipe(name)
    recipe, text = load_recipe(path), path.read_text(encoding="utf-8")
    return {
        "name": name,
        "title": text.partition("\n")[0].removeprefix("# "),
        "task": _task(recipe),
        "scheme": recipe.scheme["name"],
        "encoder_layers": recipe.model.encoder_layers,
        "decoder_layers": recipe.model.decoder_layers,
        "d_model": recipe.model.d_model,
        **read_header(text),
    }


def read_header(text: str) -> dict[str, str]:
    """Return what the comment at the head of a recipe says of command, hardware, time and expected score."""
    found: dict[str, str] = {}
    last = ""
    for line in text.partition("\n\n")[0].splitlines():
        if field := _FIELD.fullmatch(line):
            last, found[field[1]] = field[1], field[2]
        elif last and (more := _CONTINUED.fullmatch(line)):
            found[last] += f" {more[1]}"
        else:
            last = ""
    return found


def _task(recipe: Recipe) -> str:
    """Return what is learnt, and from which text."""
    data = recipe.data
    what = ", ".join(data.pairs) or " to ".join(data.languages)
    text = f"{data.corpus}, {what}" if data.corpus else "files of your own"
    return f"{_TASKS[recipe.model.architecture]}: {text}"
