"""Verb `reproduce`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepnet.cli.options import Cache, Device, Json, cache_folder, examples, whole_numbers
from deepnet.cli.output import Output

if TYPE_CHECKING:
    from deepnet.experiments.reproduce import Reproduced

REPRODUCE_EXAMPLES = examples(
    "deepnet reproduce --list",
    "deepnet reproduce deepnet-figure5",
    "deepnet reproduce deepnet-figure5 --seeds 1 --out runs/figure5   # 2 and 3 later: this one is kept",
    "deepnet reproduce deepnet-figure5 --full --processes 1",
)


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Experiment of --list.", show_default=False),
    ] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="List the experiments, or NAME: claim, source, time.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the results go.", show_default="results/NAME"),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="The whole grid, for a card.")] = False,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="S,S,...", help="Seeds, such as 1,2,3.", show_default="the experiment's"
        ),
    ] = None,
    processes: Annotated[
        int, typer.Option(metavar="N", help="Cells that run at a time, on a thread each.")
    ] = 2,
    device: Device = "auto",
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """Ask a figure of the papers again, at a size that two cores run: table, picture and verdict.

    The verdict is "holds", "does not" or "cannot be told", from at least three seeds. Cells of the grid that are done
    are not done again.
    """
    output = Output(as_json=as_json)
    if list_all or name is None:
        _list(output, only=name)
        return
    from deepnet.experiments.reproduce import reproduce as ask

    found = ask(
        name,
        out=out,
        full=full,
        seeds=None if seeds is None else whole_numbers(seeds, option="--seeds"),
        processes=processes,
        device=device,
        cache=cache_folder(cache),
        report=output.say,
    )
    output.result(_described(name, found), show=lambda: _show(output, found))


def _list(output: Output, *, only: str | None) -> None:
    from deepnet.experiments.catalogue import experiment_row, experiment_table

    found = [experiment_row(only)] if only else experiment_table()
    output.result(found, show=lambda: _show_list(output, found))


def _show_list(output: Output, found: list[dict[str, Any]]) -> None:
    for one in found:
        output.heading(one["name"])
        output.say(f"  {one['claim']}\n  {one['source']}")
        output.say(f"  {one['hours']}; --full: {one['full_hours']}")


def _described(name: str, found: "Reproduced") -> dict[str, Any]:
    return {
        "name": name,
        "folder": str(found.folder),
        "num_cells": found.num_cells,
        "num_finished": found.num_finished,
        **found.verdict.to_dict(),
    }


def _show(output: Output, found: "Reproduced") -> None:
    for finding in found.verdict.findings:
        output.say(f"  {finding.sentence()}")
    output.heading(found.verdict.answer)
    output.say(f"Table and picture: {found.folder / 'table.md'}, {found.folder / 'figure.png'}")
