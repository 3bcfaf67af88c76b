"""Verbs `schemes` and `coefficients`."""

from typing import Annotated

import typer

from deepnet.cli.options import Json, examples
from deepnet.cli.output import Output

SCHEMES_EXAMPLES = examples("deepnet schemes", "deepnet schemes --json")
COEFFICIENTS_EXAMPLES = examples(
    "deepnet coefficients --scheme deepnorm --encoder-layers 18 --decoder-layers 18",
    "deepnet coefficients --scheme deepnorm --decoder-layers 96",
    "deepnet coefficients --scheme deepnorm --encoder-layers 24 --optimizer lamb"
    " scheme.convention=essay",
)


def schemes(as_json: Json = False) -> None:
    """List the residual schemes, with their sources."""
    from deepnet.schemes.catalogue import scheme_table

    output = Output(as_json=as_json)
    found = scheme_table()
    columns = ("name", "summary", "source", "folds_to")
    rows = [[row[column] for column in columns] for row in found]
    output.result(found, show=lambda: output.table(["scheme", *columns[1:3], "folds to"], rows))


def coefficients(
    scheme: Annotated[str, typer.Option(metavar="S", help="Name, as `deepnet schemes` lists it.")],
    encoder_layers: Annotated[
        int, typer.Option(metavar="N", help="Layers of the encoder; 0 is decoder-only.")
    ] = 0,
    decoder_layers: Annotated[
        int, typer.Option(metavar="M", help="Layers of the decoder; 0 is encoder-only.")
    ] = 0,
    optimizer: Annotated[
        str,
        typer.Option(metavar="O", help="Optimiser, where coefficients depend on it."),
    ] = "adam",
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCHEME.KEY=VALUE", help="Options of the scheme.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a scheme's coefficients at a depth.

    Alpha and beta per stack, and in --json the scales and gains of every site.
    """
    from deepnet.cli.reports import show_coefficients
    from deepnet.config import build, override_section
    from deepnet.schemes.catalogue import load_scheme
    from deepnet.schemes.coefficients import coefficients as compute
    from deepnet.training.config import OptimizerConfig, optimizer_family

    output = Output(as_json=as_json)
    found = compute(
        load_scheme(scheme, override_section("scheme", {}, options or [])),
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
        optimizer_family=optimizer_family(
            build(OptimizerConfig, {"name": optimizer}, where="optimizer").name
        ),
    )
    output.result(found, show=lambda: show_coefficients(output, found))
