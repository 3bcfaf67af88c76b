"""The page: everything the runs hold as words, numbers and one HTML file that asks nothing of any network."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from deepnet.report.folder import ReportedRun
from deepnet.report.incidents import Incident, incidents_of, undrawn_note
from deepnet.report.lines import LineChart, outside_charts, probe_charts, training_charts
from deepnet.report.maps import DepthMap, depth_maps, left_out_notes
from deepnet.report.recipes import table_of
from deepnet.report.samples import sample_tables
from deepnet.report.summary import (
    best_validation,
    depth_of,
    last_step,
    scheme_of,
    status_of,
    summary_of,
    test_score,
)
from deepnet.version import __version__

ASSETS = Path(__file__).parent / "assets"
"""Templates, style, scripts and the drawing library."""
_SCRIPTS = ("figures.js", "maps.js", "numbers.js", "page.js")

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_DASHES = ("solid", "dash", "dashdot", "longdash", "longdashdot")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "hexagon")


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a run is told from the others: by colour, and without it by dash and marker."""

    colour: str
    dash: str
    symbol: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """What is shown of some runs."""

    runs: Sequence[ReportedRun]
    training: list[LineChart]
    output: list[LineChart]
    maps: list[DepthMap]
    outside: list[LineChart]
    incidents: list[Incident]

    @classmethod
    def of(cls, runs: Sequence[ReportedRun]) -> "Report":
        """Work out the charts of some runs."""
        incidents = incidents_of(runs)
        spent = sum(window.num_cells for incident in incidents for window in incident.maps)
        return cls(
            runs=runs,
            training=training_charts(runs),
            output=probe_charts(runs),
            maps=depth_maps(runs, spent=spent),
            outside=outside_charts(runs),
            incidents=incidents,
        )

    @property
    def title(self) -> str:
        """The title of the page."""
        if len(self.runs) == 1:
            return f"Run {self.runs[0].name}"
        return f"{len(self.runs)} runs side by side"


def page_of(report: Report, *, live: Mapping[str, Any] | None = None) -> str:
    """Return the whole page; a live one, told its version, asks the server for news, another asks nobody."""
    scripts = [*_SCRIPTS, "live.js"] if live else _SCRIPTS
    own = f'"use strict";\n(() => {{\n{"".join(map(_asset, scripts))}}})();'
    library = _asset("plotly-cartesian.min.js")
    return _template("page.html").render(
        title=report.title,
        policy=_policy([library, own], live=live is not None),
        style=Markup(_asset("report.css")),
        library=Markup(library),
        script=Markup(own),
        licence=Markup(_asset("plotly.LICENSE")),
        main=Markup(main_of(report)),
        data=Markup(_in_script({**report_data(report), "live": live})),
        live=live is not None,
    )


def main_of(report: Report) -> str:
    """Return what stands between the page's head and its scripts."""
    runs = report.runs
    return _template("main.html").render(
        report=report,
        runs=runs,
        styles=styles_of(len(runs)),
        version=__version__,
        time=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        summaries=[_summary(run) for run in runs],
        depth=_by_probe(report.maps),
        depth_notes=left_out_notes(runs, report.maps),
        incident_notes=undrawn_note(runs),
        samples=sample_tables(runs),
        recipe=table_of([run.recipe for run in runs]),
        environment=table_of([run.environment for run in runs]),
    )


def report_data(report: Report) -> dict[str, Any]:
    """Return the numbers that the scripts draw."""
    details = report.incidents
    lines = [*report.training, *report.output, *report.outside]
    lines += [chart for incident in details for chart in incident.charts]
    maps = [*report.maps, *(found for incident in details for found in incident.maps)]
    styles = styles_of(len(report.runs))
    return {
        "runs": [
            {"name": run.name, **asdict(style)}
            for run, style in zip(report.runs, styles, strict=True)
        ],
        "incidents": [
            {"run": i.run, "step": i.step, "kind": i.kind, "action": i.action, "where": i.where}
            for i in details
        ],
        "lines": {chart.key: asdict(chart) for chart in lines},
        "maps": {found.key: asdict(found) for found in maps},
    }


def styles_of(count: int) -> list[Style]:
    """Return a look for each of so many runs."""
    return [
        Style(
            colour=_COLOURS[number % len(_COLOURS)],
            dash=_DASHES[number % len(_DASHES)],
            symbol=_SYMBOLS[number % len(_SYMBOLS)],
        )
        for number in range(count)
    ]


def _summary(run: ReportedRun) -> dict[str, Any]:
    best = best_validation(run)
    return {
        "text": summary_of(run),
        "status": status_of(run),
        "scheme": scheme_of(run),
        "depth": depth_of(run),
        "parameters": f"{run.parameters:,}" if run.parameters else "-",
        "updates": f"{last_step(run):,}",
        "best": f"{best[0]:.4f}" if best else "-",
        "test": test_score(run) or "-",
    }


def _by_probe(maps: Sequence[DepthMap]) -> dict[str, list[DepthMap]]:
    found: dict[str, list[DepthMap]] = {}
    for one in maps:
        found.setdefault(one.title, []).append(one)
    return found


def _policy(scripts: Sequence[str], *, live: bool) -> str:
    """Return a content security policy: these very scripts, no others, and no request but a live page's for news."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"connect-src {chr(39)}{'self' if live else 'none'}{chr(39)}; base-uri 'none'; form-action 'none'"
    )


def _in_script(data: Mapping[str, Any]) -> str:
    """Return JSON that no text in it can end: "<", ">" and "&" are written as escapes."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _template(name: str) -> Template:
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)
