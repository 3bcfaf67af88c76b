"""Verbs `schemes` and `coefficients`."""

from typing import Annotated, Any

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
    """List the residual schemes: equation, norms, parameters, what each folds to, source.

    Norms and parameters are read off a model of each, built for it.
    """
    from deepnet.survey import scheme_catalogue

    output = Output(as_json=as_json)
    found = scheme_catalogue()
    output.result(found, show=lambda: _show(output, found))


def _show(output: Output, found: list[dict[str, Any]]) -> None:
    from deepnet.schemes.catalogue import UNDEFINED
    from deepnet.survey import NORMS, PARAMETERS

    columns = ("name", "equation", "norms", "extra_parameters", "folds_to", "source")
    heads = ["scheme", "equation", "norms", "parameters", "folds to (default options)", "source"]
    output.table(heads, [[row[column] for column in columns] for row in found])
    for note in (NORMS, PARAMETERS, *(f"{name}: {why}." for name, why in UNDEFINED.items())):
        output.say(note)


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
