"""How `deepnet schemes` shows a list of schemes, or one in full, in 80 columns."""

import json
import re
from collections.abc import Iterable, Iterator
from textwrap import wrap
from typing import Any

from deepnet.cli.output import Output

WIDTH = 80
_LABEL = 13
_RATES = {"shared": "the grid's learning rate", "own": "its source's"}
_SINGLE_SPACE = re.compile(r"(?<=:) +|(?<! ) (?! )")  # or what follows a colon
_NOT_AFTER_COMMA = re.compile(r"(?<!,) ")


def show_list(output: Output, found: list[dict[str, Any]]) -> None:
    """Show name and equation of every scheme, by what it changes."""
    from deepnet.schemes.catalogue import CHANGES, UNDEFINED

    indent = 4 + max(len(row["name"]) for row in found)
    for change, meaning in CHANGES.items():
        if rows := [row for row in found if row["changes"] == change]:
            output.heading(f"{change}: {meaning}")
            for row in rows:
                label = f"  {row['name']:<{indent - 2}}"
                rest = " " * indent
                for line in _broken(row["equation"], label, rest, tight=_NOT_AFTER_COMMA):
                    output.say(line)
            output.say()
    notes = [f"{name}: {why}." for name, why in UNDEFINED.items()]
    for note in ("`deepnet schemes NAME` shows one in full; --json has more of all.", *notes):
        output.say(hanging("", note, indent=0))


def show_sheet(output: Output, sheet: dict[str, Any]) -> None:
    """Show all that is known of one scheme."""
    output.heading(sheet["name"])
    output.say(hanging("", sheet["written"]["description"], indent=0))
    for title, lines in (
        ("", _equation(sheet["written"]["equation"])),
        ("Where it came from", _origin(sheet)),
        ("What it is", _nature(sheet)),
        ("What it costs", _cost(sheet)),
        ("What we measured", _evidence(sheet["evidence"])),
        ("Options", _options(sheet)),
        ("Try it", _commands(sheet)),
    ):
        output.say()
        if title:
            output.heading(title)
        for line in lines:
            output.say(line)


def hanging(label: str, text: str, *, indent: int = _LABEL) -> str:
    """Return a text in lines of 80 columns, all from column `indent` on, with a label before the first."""
    layout = _whole_words(" " * indent)
    return "\n".join(wrap(text, WIDTH, initial_indent=f"{label:<{indent}}", **layout))


def _equation(text: str) -> Iterator[str]:
    """Yield the lines of an equation in full; those that are too long go on, deeper."""
    for line in text.splitlines():
        begin = " " * (4 + len(line) - len(line.lstrip()))
        yield from _broken(line.strip(), begin, begin + " " * 4, tight=_SINGLE_SPACE)


def _broken(text: str, first: str, rest: str, *, tight: re.Pattern[str]) -> Iterator[str]:
    """Yield lines of 80 columns, broken at spaces that are `tight` only where no others will do."""
    layout = _whole_words(rest)
    for part in wrap(
        tight.sub(lambda run: "\0" * len(run[0]), text), WIDTH, initial_indent=first, **layout
    ):
        yield from wrap(part.replace("\0", " "), WIDTH, **layout)


def _whole_words(rest: str) -> dict[str, Any]:
    """Return the layout of lines that break no word, with what those after the first begin with."""
    return {"subsequent_indent": rest, "break_long_words": False, "break_on_hyphens": False}


def _origin(sheet: dict[str, Any]) -> Iterator[str]:
    written = sheet["written"]
    yield hanging("source", written["source"] or "-")
    yield hanging("grew out of", ", ".join(sheet["grew_out_of"]) or "-")
    yield hanging("led to", ", ".join(sheet["led_to"]) or "-")
    yield hanging("differs", written["differs"] or "-")


def _nature(sheet: dict[str, Any]) -> Iterator[str]:
    from deepnet.schemes.catalogue import CHANGES

    change = sheet["changes"]
    folds = f"{sheet['folds_to']}, exactly, by deepnet.fold(model) (default options)"
    yield hanging("changes", f"{change}: {CHANGES[change]}" if change else "-")
    yield hanging("norms", sheet["norms"])
    restriction = f": {sheet['restriction']}" if sheet["restriction"] else ""
    yield hanging("for", ", ".join(sheet["architectures"]) + restriction)
    yield hanging("warm-up", "as usual" if sheet["warmup"] else "none, unless the recipe has one")
    yield hanging("folds to", folds if sheet["folds_to"] else "nothing")


def _cost(sheet: dict[str, Any]) -> Iterator[str]:
    from deepnet.survey.costs import COSTS
    from deepnet.survey.table import PARAMETERS

    cost = sheet["cost"]
    if written := sheet["written"]["cost"]:
        yield hanging("", written, indent=0)
    yield hanging("parameters", f"{sheet['extra_parameters']:+,} beside post_ln's")
    yield hanging(
        "time",
        f"{cost['kernels']:.2f} times post_ln's kernels, {cost['moved_bytes']:.2f} times the bytes "
        "they read and write",
    )
    yield hanging(
        "memory", f"{cost['kept_bytes']:.2f} times what post_ln keeps for the backward pass"
    )
    yield hanging("", f"{PARAMETERS} {COSTS}", indent=2)


def _evidence(evidence: dict[str, Any]) -> Iterator[str]:
    rows = evidence["rows"]
    if not rows:
        yield "nothing yet: it is in no finished cell of benchmarks/scheme_grid.py"
        return
    for task in dict.fromkeys(row["task"] for row in rows):
        yield from _task(evidence, task)
    made = f"{evidence['device']}, torch {evidence['torch']}, commit {evidence['commit']}"
    yield hanging("", f"{made}; again, in the repository:", indent=0)
    yield f"  {evidence['command']}"


def _task(evidence: dict[str, Any], task: str) -> Iterator[str]:
    about = evidence["tasks"][task]
    yield hanging("", f"{about['about']}; loss of the valid part in nats per token:", indent=0)
    seeds = list(evidence["rows"][0]["losses"])
    yield _columns("", (f"seed {seed}" for seed in seeds), "")
    for whose, rows in (("", evidence["rows"]), ("post_ln, ", evidence["beside"])):
        for row in rows:
            if row["task"] == task:
                losses = (_loss(row["losses"].get(seed)) for seed in seeds)
                yield _columns(f"{whose}{_RATES[row['rate']]}", losses, row["outcome"])
    yield _columns("word frequencies alone", [_loss(about["word_entropy"])], "")


def _columns(label: str, numbers: Iterable[str], last: str) -> str:
    return f"  {label:<34}{''.join(f'{number:>9}' for number in numbers)}   {last}".rstrip()


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _options(sheet: dict[str, Any]) -> Iterator[str]:
    if not sheet["options"]:
        yield "none"
    for option in sheet["options"]:
        yield f"scheme.{option['name']} = {_value(option['default'])}"
        if option["choices"]:
            yield hanging("", f"one of {', '.join(map(_value, option['choices']))}", indent=2)
        yield hanging("", option["meaning"] or "-", indent=2)
    if sheet["refused"]:
        yield "refused:"
    for refused in sheet["refused"]:
        said = ", ".join(f"{key} = {_value(value)}" for key, value in refused["options"].items())
        yield hanging(f"  {said}: ", refused["message"], indent=4)


def _value(value: Any) -> str:
    """Return a value as a recipe has it; TOML has no null."""
    return "unset" if value is None else json.dumps(value)


def _commands(sheet: dict[str, Any]) -> Iterator[str]:
    name, architecture = sheet["name"], sheet["architectures"][0]
    stacks = [one for one in ("encoder", "decoder") if one in architecture]
    depth = " ".join(f"--{stack}-layers 18" for stack in stacks)
    for words in (f"coefficients --scheme {name} {depth}", f"train RECIPE scheme.name={name}"):
        line = f"  deepnet {words}"
        fits = len(line) <= WIDTH
        yield line if fits else " \\\n".join(wrap(line, WIDTH - 2, **_whole_words(" " * 4)))
