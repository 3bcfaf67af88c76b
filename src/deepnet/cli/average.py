"""Verb `average`."""

from pathlib import Path
from typing import Annotated

import typer

from deepnet.cli.options import Cache, Json, TrustCode, cache_folder, examples
from deepnet.cli.output import Output

AVERAGE_EXAMPLES = examples(
    "deepnet average runs/mine --last 5",
    "deepnet average runs/mine --last 1 --out models/latest   # of an unfinished run, too",
)


def average(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", show_default=False)],
    last: Annotated[int, typer.Option(metavar="N", help="Latest checkpoints to average.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="BUNDLE", help="Folder to write.", show_default="RUN/average_N"),
    ] = None,
    cache: Cache = None,
    trust_code: TrustCode = None,
    as_json: Json = False,
) -> None:
    """Average a run's latest checkpoints into a bundle.

    How many checkpoints a run keeps is training.keep_last of its recipe.
    """
    from deepnet.pipeline.average_run import average_run

    output = Output(as_json=as_json)
    bundle, steps = average_run(
        run,
        last=last,
        out=out,
        cache=cache_folder(cache),
        trust_code=trust_code or (),
        report=output.say,
    )
    updates = ", ".join(f"{step:,}" for step in steps)
    output.result(
        {"bundle": str(bundle), "steps": steps},
        show=lambda: output.say(f"{bundle}: the average of the checkpoints of updates {updates}"),
    )
