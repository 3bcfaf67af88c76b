"""Verbs `schemes` and `coefficients`."""

from typing import Annotated

import typer

from deepnet.cli.options import Json, examples
from deepnet.cli.output import Output

SCHEMES_EXAMPLES = examples(
    "deepnet schemes", "deepnet schemes deepnorm", "deepnet schemes my_module:Scheme --json"
)
COEFFICIENTS_EXAMPLES = examples(
    "deepnet coefficients --scheme deepnorm --encoder-layers 18 --decoder-layers 18",
    "deepnet coefficients --scheme deepnorm --decoder-layers 96",
    "deepnet coefficients --scheme deepnorm --encoder-layers 24 --optimizer lamb"
    " scheme.convention=essay",
)


def schemes(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Scheme to show in full; it may be one of your own, module:Class.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the residual schemes by what they change, or show one in full.

    In full: equation, where it came from, what it folds to, what it costs, what we measured, its options. Norms,
    parameters, time and memory are read off a model of it, built for it.
    """
    if name is None:
        _list(Output(as_json=as_json))
    else:
        _show(Output(as_json=as_json), name)


def _list(output: Output) -> None:
    from deepnet.cli.scheme_sheet import show_list

    if output.as_json:
        from deepnet.survey import scheme_catalogue as listed
    else:
        from deepnet.schemes.catalogue import scheme_table as listed
    found = listed()
    output.result(found, show=lambda: show_list(output, found))


def _show(output: Output, name: str) -> None:
    from deepnet.cli.scheme_sheet import show_sheet
    from deepnet.survey import scheme_sheet

    found = scheme_sheet(name)
    output.result(found, show=lambda: show_sheet(output, found))


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
