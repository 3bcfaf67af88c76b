"""Verb `grow`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from deepnet.cli.options import Cache, Json, TrustCode, cache_folder, examples
from deepnet.cli.output import Output

if TYPE_CHECKING:
    from deepnet.growth.grow_run import GrownRun

GROW_EXAMPLES = examples(
    "deepnet grow runs/6 --encoder-layers 12 --decoder-layers 12 --out models/12",
    "deepnet train runs/6 model.encoder_layers=12 model.decoder_layers=12 --from models/12 --out runs/12",
    "deepnet grow runs/6 --encoder-layers 18 --method interleave --out models/18",
)


def grow(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Finished run folder, or bundle.", show_default=False),
    ],
    out: Annotated[Path, typer.Option(metavar="GROWN", help="Bundle to write.")],
    encoder_layers: Annotated[
        int | None, typer.Option(metavar="N", help="A multiple of those there are.")
    ] = None,
    decoder_layers: Annotated[
        int | None, typer.Option(metavar="M", help="A multiple of those there are.")
    ] = None,
    method: Annotated[
        Literal["stack", "interleave"],
        typer.Option(help="stack: 1 2 3 1 2 3; interleave: 1 1 2 2 3 3."),
    ] = "stack",
    cache: Cache = None,
    trust_code: TrustCode = None,
    as_json: Json = False,
) -> None:
    """Make a trained model deeper: a bundle to train on from, whose new layers are copies of the trained ones.

    Where the scheme allows, new layers are silent at first, and the model computes what it did; else it says why not.
    The loss on the valid part is shown before and after.
    """
    from deepnet.growth.grow_run import grow_run

    output = Output(as_json=as_json)
    found = grow_run(
        run,
        out=out,
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
        method=method,
        cache=cache_folder(cache),
        trust_code=trust_code or (),
        report=output.say,
    )
    output.result(found.to_dict(), show=lambda: _show(output, found))


def _show(output: Output, found: "GrownRun") -> None:
    depth = " + ".join(str(layers) for layers in found.layers.values())
    output.say(f"{found.bundle}: {depth} layers, {found.parameters:,} parameters")
    for why in found.jumps:
        output.say(f"the function is not preserved: {why}")
    if not found.jumps:
        output.say("the function is preserved: new layers are silent until they have learnt")
    if found.loss_before is None or found.loss_after is None:
        output.say("the loss was not measured: a bundle that is not in a run folder has no text")
        return
    jump = found.loss_after - found.loss_before
    output.say(
        f"loss on the valid part, in nats per token: {found.loss_before:.4f} before, {found.loss_after:.4f} after, "
        f"{jump:+.2g}"
    )
