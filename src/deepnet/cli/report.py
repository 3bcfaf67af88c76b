"""Verb `report`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepnet.cli.options import Json, examples
from deepnet.cli.output import Output
from deepnet.errors import ConfigError

if TYPE_CHECKING:
    from deepnet.report.write import WrittenReport

REPORT_EXAMPLES = examples(
    "deepnet report runs/mine                          # runs/mine/report.html",
    "deepnet report runs/a runs/b --out both.html      # side by side",
    "deepnet report runs/mine --watch                  # while it trains, until Ctrl-C",
)
_PORT = 8642


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders.", show_default=False),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The file to write; by default report.html in the run, of several runs in the current folder.",
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Serve the page on this machine and keep it up to date."),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, max=65535, help=f"With --watch; by default {_PORT}, 0 is any free."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page about one run, or several side by side.

    Losses, BLEU, learning rate, what the probes read layer by layer, incidents, translations, recipe and environment.
    The file needs no network. With --watch nothing is written: the page is served to browsers on this machine.
    """
    output = Output(as_json=as_json)
    if not watch:
        _write(output, runs, out=out, port=port)
        return
    if out is not None or as_json:
        given = "--out" if out is not None else "--json"
        raise ConfigError(f"{given} has no effect with --watch, which writes nothing; leave it out")
    _serve(output, runs, port=_PORT if port is None else port)


def _write(output: Output, runs: list[Path], *, out: Path | None, port: int | None) -> None:
    from deepnet.report.write import write_report

    if port is not None:
        raise ConfigError("--port has no effect without --watch; leave it out")
    written = write_report(runs, out)
    result = {
        "report": str(written.path),
        "bytes": written.num_bytes,
        "runs": written.names,
        "notes": written.notes,
    }
    output.result(result, show=lambda: _show(output, written))


def _show(output: Output, written: "WrittenReport") -> None:
    for note in written.notes:
        output.say(note)
    output.say(f"{written.path}   {written.num_bytes / 1e6:.1f} MB")


def _serve(output: Output, runs: list[Path], *, port: int) -> None:
    from deepnet.report.watch import ReportServer, WatchedRuns

    with ReportServer(WatchedRuns(runs), port=port) as server:
        output.say(f"{server.url}   Ctrl-C ends it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            output.say("\nended; the run goes on")
