"""The command `deepnet`: its verbs, and how errors end it."""

import os
import sys
from typing import Annotated

import typer

from deepnet.cli import (
    audit,
    average,
    data,
    demo,
    doctor,
    evaluate,
    grow,
    plan,
    probe,
    prune,
    recipes,
    report,
    reproduce,
    scaling_law,
    schemes,
    train,
    translate,
)
from deepnet.cli.options import Json
from deepnet.cli.output import Output
from deepnet.errors import ConfigError, DeepNetError
from deepnet.version import __version__


def main() -> None:
    """Run the command: exit code 0, 1 where something failed, 2 where it was used wrongly."""
    # a scheme of the user's own is a module beside the recipe; last, so that nothing there passes for an installed one
    sys.path.append(os.getcwd())
    try:
        build_app()()
    except (DeepNetError, OSError) as error:
        rank = os.environ.get("RANK", "0")
        where = "" if rank == "0" else f"rank {rank}: "
        for line in str(error).splitlines():
            print(f"{where}error: {_plain(line)}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError) else 1)


def _plain(line: str) -> str:
    """Return a message without what a terminal would obey: part of it may come from a stranger's file."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)


def build_app() -> typer.Typer:
    """Return the command with all its verbs."""
    app = _group(
        "Train, use and compare translators of any depth. Every verb has examples: deepnet VERB --help."
    )
    app.callback()(_root)
    app.command(epilog=demo.DEMO_EXAMPLES)(demo.demo)
    app.command(epilog=recipes.RECIPES_EXAMPLES)(recipes.recipes)
    app.command(epilog=train.PREPARE_EXAMPLES)(train.prepare)
    app.command(epilog=plan.PLAN_EXAMPLES)(plan.plan)
    app.command(epilog=doctor.DOCTOR_EXAMPLES)(doctor.doctor)
    app.command(epilog=train.TRAIN_EXAMPLES)(train.train)
    app.command(epilog=translate.TRANSLATE_EXAMPLES)(translate.translate)
    app.command(epilog=translate.SCORE_EXAMPLES)(translate.score)
    app.command(epilog=evaluate.EVALUATE_EXAMPLES)(evaluate.evaluate)
    app.command(epilog=evaluate.COMPARE_EXAMPLES)(evaluate.compare)
    app.command(epilog=average.AVERAGE_EXAMPLES)(average.average)
    app.command(epilog=schemes.SCHEMES_EXAMPLES)(schemes.schemes)
    app.command(epilog=schemes.COEFFICIENTS_EXAMPLES)(schemes.coefficients)
    app.command(epilog=audit.AUDIT_EXAMPLES)(audit.audit)
    app.command(epilog=probe.PROBE_EXAMPLES)(probe.probe)
    app.command(epilog=report.REPORT_EXAMPLES)(report.report)
    app.command(epilog=reproduce.REPRODUCE_EXAMPLES)(reproduce.reproduce)
    app.command(epilog=grow.GROW_EXAMPLES)(grow.grow)
    app.command(epilog=prune.PRUNE_EXAMPLES)(prune.prune)
    app.command("scaling-law", epilog=scaling_law.SCALING_LAW_EXAMPLES)(scaling_law.scaling_law)
    app.add_typer(_data(), name="data")
    app.command()(version)
    return app


def _data() -> typer.Typer:
    group = _group("List corpora, or fetch one.")
    group.command("list", epilog=data.LIST_EXAMPLES)(data.list_corpora)
    group.command("get", epilog=data.GET_EXAMPLES)(data.get)
    return group


def _group(about: str) -> typer.Typer:
    # plain help: rich panels cost time at every start, and break examples that are meant to be copied
    return typer.Typer(
        help=about,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _show_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


def _root(
    show_version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version."),
    ] = False,
) -> None:
    """Take the flags that stand before a verb."""


def version(as_json: Json = False) -> None:
    """Show the version; with --json, the environment."""
    if not as_json:
        print(f"deepnet {__version__}")
        return
    from deepnet.record import environment

    output = Output(as_json=True)
    output.result(environment(), show=lambda: None)
