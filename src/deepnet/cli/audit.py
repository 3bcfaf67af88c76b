"""Verb `audit`."""

from typing import TYPE_CHECKING, Annotated

import typer

from deepnet.cli.options import Json, examples
from deepnet.cli.output import Output

if TYPE_CHECKING:
    from deepnet.audit.report import AuditReport, Measure
    from deepnet.schemes.base import ResidualScheme

AUDIT_EXAMPLES = examples(
    "deepnet audit my_model:build",
    "deepnet audit my_model:build --claims deepnorm",
    "deepnet audit my_model:build --claims deepnorm --json",
    "deepnet audit my_model:build --claims deepnorm --optimizer sgd scheme.convention=essay",
)


def audit(
    factory: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FACTORY",
            help="Function that returns a freshly initialised torch module, or the module and a tuple of inputs.",
        ),
    ],
    claims: Annotated[
        str | None,
        typer.Option(
            metavar="S", help="Scheme that the model should have, as `deepnet schemes` lists it."
        ),
    ] = None,
    optimizer: Annotated[
        str,
        typer.Option(
            metavar="O",
            help="Optimiser that will train the model, where the claim depends on it.",
        ),
    ] = "adam",
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCHEME.KEY=VALUE", help="Options of the claimed scheme.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure where a model's norms and scales are and how its weights are drawn.

    With --claims every difference from that scheme is a finding, without only what is wrong under any. The exit code
    is 1 where there are findings, and where no residual site was located: the claim is then not checked.
    """
    from deepnet.audit.examine import audit as examine
    from deepnet.audit.factory import build_from_factory
    from deepnet.config import build
    from deepnet.training.config import OptimizerConfig, optimizer_family

    output = Output(as_json=as_json)
    scheme = _claimed(claims, options or [])
    family = optimizer_family(build(OptimizerConfig, {"name": optimizer}, where="optimizer").name)
    model, inputs = build_from_factory(factory)
    report = examine(model, inputs, claims=scheme, optimizer_family=family)
    output.result(report.to_dict(), show=lambda: _show(output, report))
    if report.findings or (scheme and not report.sites):
        raise typer.Exit(1)


def _claimed(name: str | None, options: list[str]) -> "ResidualScheme | None":
    """Return the claimed scheme with its options; raises ConfigError for options without a claim."""
    from deepnet.config import override_section
    from deepnet.errors import ConfigError
    from deepnet.schemes.catalogue import load_scheme

    if name is not None:
        return load_scheme(name, override_section("scheme", {}, options))
    if options:
        raise ConfigError(f"'{options[0]}' is an option of no scheme; say which one with --claims")
    return None


def _show(output: Output, report: "AuditReport") -> None:
    output.table(
        ["residual site", "norm", "skip", "branch"],
        [(s.where, s.norm, _shown(s.skip), _shown(s.branch)) for s in report.sites],
    )
    output.say()
    output.table(
        ["matrix", "role", "std", "claimed"],
        [(r.where, r.role, r.std, r.expected) for r in report.roles],
    )
    unlocated = (
        "" if report.sites else "; no residual site was located, so that no scheme is checked"
    )
    output.say(f"\n{len(report.findings)} findings{unlocated}")
    for finding in report.findings:
        measured, expected = _shown(finding.measured), _shown(finding.expected)
        output.say(f"- {finding.where}: {finding.what}")
        output.say(f"  measured {measured}, claimed {expected}")
    _show_notes(output, report)
    if report.not_located:
        output.say("\nnot located or not compared")
    for text in report.not_located:
        output.say(f"- {text}")


def _show_notes(output: Output, report: "AuditReport") -> None:
    if report.notes:
        output.say(f"\n{len(report.notes)} notes: another form, or nearly the claimed function")
    for note in report.notes:
        output.say(f"- {note.where}: {note.what}")
        output.say(f"  measured {_shown(note.measured)}, claimed {_shown(note.expected)}")


def _shown(measure: "Measure") -> str:
    """Return a measured number, the range of a vector, or a word."""
    if isinstance(measure, list):
        return " to ".join(f"{number:.5g}" for number in measure)
    if measure is None:
        return "not located"
    return measure if isinstance(measure, str) else f"{measure:.5g}"
