"""Write docs/recipes.md and docs/schemes.md from the code itself; `--check` only says whether they are up to date.

Everything shown comes from where it is defined: the sections' fields with the docstrings under them, the schemes'
module docstrings and dataclass fields.
"""

import inspect
import json
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from deepnet.config import Section
from deepnet.left_open import LeftOpen
from deepnet.pipeline.recipe import Recipe
from deepnet.schemes.base import ResidualScheme
from deepnet.schemes.catalogue import CHANGES, UNDEFINED, list_schemes, scheme_class
from deepnet.survey import NORMS, PARAMETERS, refused_options, scheme_catalogue
from deepnet.survey.docstrings import list_options, read_docstring
from deepnet.survey.sheet import led_to
from deepnet.training.checkpoint.resume import CHANGEABLE

FOLDER = Path(__file__).parent
HEAD = "<!-- Written by docs/generate.py (make docs); edit the docstrings it is made from. -->"
NAMES = {int: "integer", float: "number", bool: "true or false", str: "text"}


@cache
def pages() -> dict[str, str]:
    """Return the content of every generated page by file name."""
    return {"recipes.md": recipe_page(), "schemes.md": scheme_page()}


def outdated(folder: Path) -> list[str]:
    """Return the generated pages that are missing from `folder` or differ."""
    return [
        name
        for name, text in pages().items()
        if not (folder / name).exists() or (folder / name).read_text(encoding="utf-8") != text
    ]


# The recipe reference -----------------------------------------------------------------------------------------------


def recipe_page() -> str:
    """Return docs/recipes.md."""
    parts = [
        HEAD,
        "# Every key of a recipe",
        "A recipe is a TOML file of these sections. What it leaves out has the default given here; on the command line "
        "`section.key=value` comes last and wins. An unknown key is an error that names the nearest known one. "
        "`[data]` and `[training]` are needed: the first must say which text, the second when to stop.",
        "`deepnet recipes` lists the recipes that come with deepnet. The name of one can stand wherever a file can; "
        "a file or run folder of that name comes first. `deepnet recipes NAME > mine.toml` writes one out to start "
        "from.",
    ]
    for name, field in Recipe.model_fields.items():
        parts += _section(name, field) if name != "scheme" else _scheme_section(field)
    changeable = ", ".join(f"`{key}`" for key in sorted(CHANGEABLE))
    parts += [
        "## What may change on `--resume`",
        f"{changeable}. Also the sections `memory`, `guard`, `probes`, `validation` and `decoding`, and the paths of "
        "files, where their contents are the same ([run folder](run_folder.md#resuming)). Anything else is refused: it "
        "would change what an update computes. So would another `training.max_steps`, `training.max_epochs` or "
        "`training.max_minutes` where `schedule.name` is linear or cosine without `decay_steps`: the learning rate "
        "falls towards the end of the run.",
    ]
    return "\n\n".join(parts) + "\n"


def _section(name: str, field: FieldInfo) -> list[str]:
    kind = field.annotation
    assert isinstance(kind, type)
    assert issubclass(kind, Section)
    rows, inside = [], []
    for key, one in kind.model_fields.items():
        section = _optional_section(one)
        shown = f"[section](#{name}{key})" if section else _type(one.annotation, one.metadata)
        rows.append(_row(key, shown, one.default, one.description or ""))
        inside += _section(f"{name}.{key}", FieldInfo(annotation=section)) if section else []
    return [f"## [{name}]", inspect.getdoc(kind) or "", _table(rows), *inside]


def _optional_section(field: FieldInfo) -> type[Section] | None:
    """Return the section that a field may hold, None where it holds a value."""
    kinds = [one for one in get_args(field.annotation) if inspect.isclass(one)]
    return next((one for one in kinds if issubclass(one, Section)), None)


def _scheme_section(field: FieldInfo) -> list[str]:
    names = ", ".join(f'`"{name}"`' for name in list_schemes())
    name = _row(
        "name", f'{names}, or `"module:Class"` of your own', "deepnorm", "The residual scheme."
    )
    parts = ["## [scheme]", field.description or "", _table([name])]
    for scheme in list_schemes():
        if rows := option_rows(scheme_class(scheme)):
            parts += [f'With `name = "{scheme}"` ([about it](schemes.md#{scheme})):', _table(rows)]
    return parts


def _row(key: str, kind: str, default: object, meaning: str) -> str:
    cells = (f"`{key}`", kind, _shown(default), " ".join(meaning.split()))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _table(rows: list[str]) -> str:
    return "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows])


def _shown(value: object) -> str:
    """Return a default as TOML has it; TOML has no null."""
    return "unset" if value is None else f"`{json.dumps(value)}`"


def _type(annotation: Any, metadata: Any = ()) -> str:
    """Return an annotation and its bounds in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0], arguments[1].metadata)
    if origin is Literal:
        return ", ".join(f"`{json.dumps(one)}`" for one in arguments)
    if origin is tuple:
        return f"list of {len(arguments)}, each: {_type(arguments[0])}"
    if NoneType in arguments:
        return _type(next(one for one in arguments if one is not NoneType))
    limits = [_bound(bound) for bound in metadata if not isinstance(bound, LeftOpen)]
    return ", ".join([NAMES[annotation], *limits])


def _bound(bound: object) -> str:
    match bound:
        case Ge(ge=value):
            return f"at least {value}"
        case Gt(gt=value):
            return f"above {value}"
        case Le(le=value):
            return f"at most {value}"
        case Lt(lt=value):
            return f"below {value}"
    raise TypeError(f"{bound!r} is a kind of bound that this page has no words for")


# The catalogue of schemes -------------------------------------------------------------------------------------------


def scheme_page() -> str:
    """Return docs/schemes.md."""
    parts = [
        HEAD,
        "# Residual schemes",
        "`scheme.name` in a recipe. x is the stream, f a branch (attention or feed-forward), LN the norm. N counts the "
        "encoder's layers, M the decoder's. `deepnet coefficients --scheme NAME --encoder-layers N --decoder-layers M` "
        "prints the coefficients at any depth. *Folds to* names the plain model that `deepnet.fold(model)` makes of a "
        "model with the default options, which computes the same; `no_norm` is one without norms. `deepnet schemes` "
        "lists them, `deepnet schemes NAME` shows one in full, also what it costs in time and memory and what it did "
        "at 18 + 18 layers ([all of them](../results/scheme_grid/table.md)). One of your own: "
        "[add_a_scheme.md](add_a_scheme.md).",
        "![Family tree of the schemes](images/family_tree.svg)",
        "To the right of a scheme stands what its equation was changed into; the colour is what was changed. Years are "
        "those of the sources; Pre-LN itself is older than the paper that analysed it.",
        *_catalogue(),
        f"{NORMS} {PARAMETERS}",
        *(f"`{name}` is {why}." for name, why in UNDEFINED.items()),
    ]
    for name in list_schemes():
        parts += _scheme(name)
    return "\n\n".join(parts) + "\n"


def _catalogue() -> list[str]:
    """Return a table of the schemes for each thing that is changed."""
    rows = scheme_catalogue()
    found = {change: [row for row in rows if row["changes"] == change] for change in CHANGES}
    parts = []
    for change, listed in found.items():
        if listed:
            parts += [f"**{change}**: {CHANGES[change]}", _listed(listed)]
    return parts


def _listed(found: list[dict[str, Any]]) -> str:
    columns = ("equation", "norms", "extra_parameters", "folds_to", "source")
    rows = [
        [f"[{row['name']}](#{row['name']})", *(_cell(row[column]) for column in columns)]
        for row in found
    ]
    heads = ["scheme", "equation", "norms", "parameters", "folds to (default options)", "source"]
    lines = [heads, ["---", "---", "---", "---:", "---", "---"], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: str | int | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    text = value.replace("|", "\\|")
    return f"`{text}`" if "<-" in text or " = " in text else text


def _scheme(name: str) -> list[str]:
    kind = scheme_class(name)
    written = read_docstring(kind)
    facts = {
        "Source": written["source"],
        "Cost": written["cost"],
        "Differs": written["differs"],
        "Changes": f"{kind.changes}",
        "Grew out of": _linked(kind.grew_out_of) or "nothing here",
        "Led to": _linked(led_to(name)) or "nothing here",
        "Folds to": f"`{kind.folds_to}`" if kind.folds_to else "nothing",
        "Architectures": ", ".join(f"`{one}`" for one in kind.architectures),
    }
    listed = "\n".join(f"- {what}: {text}" for what, text in facts.items())
    rows = option_rows(kind)
    options = _table(rows) if rows else "No options."
    return [
        f"## {name}",
        written["description"],
        f"```\n{written['equation']}\n```",
        listed,
        options,
        *_refused(name),
    ]


def _linked(names: Iterable[str]) -> str:
    return ", ".join(f"[{name}](#{name})" for name in names)


def _refused(name: str) -> list[str]:
    """Return which options the scheme refuses, and what it says."""
    found = refused_options(name)
    lines = [
        "- "
        + ", ".join(f"`{key} = {json.dumps(value)}`" for key, value in options.items())
        + f": {message}"
        for message, options in found.items()
    ]
    return ["Refused, with what is said:", "\n".join(lines)] if lines else []


def option_rows(kind: type[ResidualScheme]) -> list[str]:
    """Return a table row per hyper-parameter of a scheme."""
    hints = get_type_hints(kind)
    return [
        _row(one["name"], _type(hints[one["name"]]), one["default"], one["meaning"])
        for one in list_options(kind)
    ]


def main() -> None:
    """Write the pages, or with --check exit with 1 where one is out of date."""
    if "--check" not in sys.argv:
        for name, text in pages().items():
            (FOLDER / name).write_text(text, encoding="utf-8")
    elif found := outdated(FOLDER):
        sys.exit(f"out of date: {', '.join(found)}; run: make docs")


if __name__ == "__main__":
    main()
