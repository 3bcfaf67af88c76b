"""Verb `prune`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepnet.cli.options import Cache, Json, TrustCode, cache_folder, examples
from deepnet.cli.output import Output
from deepnet.errors import ConfigError

if TYPE_CHECKING:
    from deepnet.growth.prune_run import KeptLayers, PrunedRun

PRUNE_EXAMPLES = examples(
    "deepnet prune runs/18 --layers-kept 30,24,18,12 --bleu --picture pruned.png   # to see what it costs",
    "deepnet prune runs/18 --layers-kept 24 --out models/24",
    "deepnet translate models/24",
)
_SHOWN = 6
"""Dropped layers that are named in a row."""


def prune(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Finished run folder.", show_default=False)
    ],
    layers_kept: Annotated[
        str,
        typer.Option(metavar="N[,N...]", help="Layers of all stacks to keep; several to compare."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="PRUNED", help="Bundle to write; with one number of layers."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PNG to draw the table to.")
    ] = None,
    bleu: Annotated[
        bool, typer.Option("--bleu", help="Translate valid sentences, and score BLEU.")
    ] = False,
    cache: Cache = None,
    trust_code: TrustCode = None,
    as_json: Json = False,
) -> None:
    """Drop the layers of a trained model whose output is most like that of the layer below.

    Shows the loss on the valid part against the layers kept. Weights stay, the scheme's coefficients are those of the
    depth that is left; to train on, give the bundle to `deepnet train --from`.
    """
    from deepnet.growth.prune_run import prune_run

    output = Output(as_json=as_json)
    found = prune_run(
        run,
        layers_kept=_numbers(layers_kept),
        out=out,
        picture=picture,
        bleu=bleu,
        cache=cache_folder(cache),
        trust_code=trust_code or (),
        report=output.say,
    )
    output.result(found.to_dict(), show=lambda: _show(output, found))


def _numbers(text: str) -> list[int]:
    parts = text.replace(",", " ").split()
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--layers-kept is {text!r}; expected whole numbers, such as 18,12,6")
    return [int(part) for part in parts]


def _show(output: Output, found: "PrunedRun") -> None:
    scored = found.rows[0].bleu is not None
    columns = ["layers", "parameters", "loss", *(["BLEU"] if scored else []), "dropped"]
    output.table(columns, [_cells(row, scored=scored) for row in found.rows])
    if found.bundle is not None:
        output.say(f"\n{found.bundle}: {found.rows[-1].layers} layers")


def _cells(row: "KeptLayers", *, scored: bool) -> list[object]:
    names = [str(place) for place in row.dropped[:_SHOWN]]
    more = len(row.dropped) - len(names)
    dropped = ", ".join([*names, *([f"{more} more"] if more else [])])
    return [row.layers, row.parameters, row.loss, *([row.bleu] if scored else []), dropped]
