"""The flags and arguments that several verbs share."""

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

Json = Annotated[
    bool,
    typer.Option("--json", help="Write JSON alone to standard output, messages to standard error."),
]
Device = Annotated[
    str,
    typer.Option("--device", metavar="D", help="cpu, cuda, cuda:1, ...; auto is a GPU if any."),
]
Precision = Annotated[
    Literal["auto", "fp32", "bf16", "fp16"],
    typer.Option(
        "--precision", metavar="P", help="fp32, bf16 or fp16; auto is as the model was trained."
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        metavar="DIR",
        help="Folder of prepared data and downloads; by default ~/.cache/deepnet.",
    ),
]
TrustCode = Annotated[
    list[str] | None,
    typer.Option(
        "--trust-code",
        metavar="MODULE:CLASS",
        help="A class that RUN may bring for its scheme: its code is imported and runs. May be repeated.",
        show_default=False,
    ),
]
To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="LANGUAGE",
        help="Language to translate into, of a model of several.",
        show_default=False,
    ),
]
RecipePath = Annotated[
    Path,
    typer.Argument(
        metavar="RECIPE",
        help="TOML file, name of a shipped recipe (`deepnet recipes`), or run folder whose recipe is taken.",
        show_default=False,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SECTION.KEY=VALUE",
        help="Set keys of the recipe, such as training.seed=2.",
        show_default=False,
    ),
]
Models = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN",
        help="Run folders or bundles, several for an ensemble; and decoding.KEY=VALUE, "
        "such as decoding.beam_size=4.",
        show_default=False,
    ),
]

_OVERRIDE = re.compile(r"\w+(\.\w+)+=.*", re.DOTALL)


def examples(*commands: str) -> str:
    """Return the end of a help text: one example per line, kept as it is."""
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


def split_overrides(arguments: list[str]) -> tuple[list[Path], list[str]]:
    """Tell the paths among some arguments from the section.key=value overrides."""
    overrides = [text for text in arguments if _OVERRIDE.fullmatch(text)]
    return [Path(text) for text in arguments if text not in overrides], overrides


def whole_numbers(text: str, *, option: str) -> list[int]:
    """Return whole numbers between commas; raises ConfigError where `option` is something else."""
    from deepnet.errors import ConfigError

    parts = text.replace(",", " ").split()
    if not parts or not all(part.isdecimal() for part in parts):
        raise ConfigError(f"{option} is {text!r}; expected whole numbers, such as 1,2,3")
    return [int(part) for part in parts]


def cache_folder(cache: Path | None) -> Path:
    """Return the folder that --cache names, or the default."""
    from deepnet.data.corpora import CACHE

    return cache or CACHE
