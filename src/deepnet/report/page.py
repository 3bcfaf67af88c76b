"""The page: everything the runs hold as words, numbers and one HTML file that asks nothing of any network."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from deepnet.report.clock import clock_of
from deepnet.report.folder import ReportedRun
from deepnet.report.incidents import Incident, incidents_of, seen_by_probes
from deepnet.report.lines import LineChart, outside_charts, probe_charts, training_charts
from deepnet.report.maps import DepthMap, depth_maps, left_out_notes
from deepnet.report.readings import in_order
from deepnet.report.recipes import table_of
from deepnet.report.samples import sample_tables
from deepnet.report.summary import (
    best_validation,
    depth_of,
    last_step,
    scheme_of,
    summary_of,
    test_score,
)
from deepnet.report.verdict import Verdict, verdict_of
from deepnet.report.windows import Window, profiles_of, undrawn_notes, windows_of
from deepnet.version import __version__

ASSETS = Path(__file__).parent / "assets"
"""Templates, style, scripts and the drawing library."""
_STYLES = ("page.css", "verdict.css", "charts.css", "tables.css", "print.css")
_SCRIPTS = (
    *("start.js", "layout.js", "along.js", "marks.js", "smooth.js", "lines.js", "cells.js"),
    *("scales.js", "maps.js", "profiles.js", "numbers.js", "drawing.js", "zoom.js"),
    *("keyboard.js", "paper.js", "page.js"),
)
_OPENED = ("diverged", "did not learn")
"""Badges of runs whose incident is open from the start."""

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
    verdicts: list[Verdict]
    training: list[LineChart]
    output: list[LineChart]
    maps: list[DepthMap]
    outside: list[LineChart]
    incidents: list[Incident]
    windows: list[Window]

    @classmethod
    def of(cls, runs: Sequence[ReportedRun]) -> "Report":
        """Work out the charts of some runs."""
        incidents = [incidents_of(run, number) for number, run in enumerate(runs)]
        windows = windows_of(incidents)
        read = [_with_readings(*both) for both in zip(runs, incidents, strict=True)]
        return cls(
            runs=read,
            verdicts=[verdict_of(*both) for both in zip(runs, incidents, strict=True)],
            training=training_charts(read, incidents),
            output=probe_charts(read),
            maps=depth_maps(read, spent=sum(m.num_cells for one in windows for m in one.maps)),
            outside=outside_charts(read),
            incidents=[one for of_run in incidents for one in of_run],
            windows=windows,
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
        style=Markup("".join(map(_asset, _STYLES))),
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
    profiles = {one.incident.key: profiles_of(one, report.maps) for one in report.windows}
    return _template("main.html").render(
        report=report,
        runs=runs,
        styles=styles_of(len(runs)),
        version=__version__,
        time=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        summaries=[_summary(run) for run in runs],
        has_clock=all(len(clock_of(run).steps) > 1 for run in runs),
        opened={one.link for one in report.verdicts if one.badge in _OPENED},
        drawn={w.incident.key for w in report.windows if w.charts or profiles[w.incident.key]},
        profiles=profiles,
        depth=_by_probe(report.maps),
        depth_notes=left_out_notes(runs, report.maps),
        incident_notes=undrawn_notes(runs, report.windows),
        samples=sample_tables(runs),
        recipe=table_of([run.recipe for run in runs]),
        environment=table_of([run.environment for run in runs]),
    )


def report_data(report: Report) -> dict[str, Any]:
    """Return the numbers that the scripts draw."""
    lines = [*report.training, *report.output, *report.outside]
    lines += [chart for window in report.windows for chart in window.charts]
    maps = [*report.maps, *(found for window in report.windows for found in window.maps)]
    styles = styles_of(len(report.runs))
    return {
        "runs": [
            {
                "name": run.name,
                **asdict(style),
                "clock": asdict(clock_of(run)),
                "decisive": verdict.incident.key if verdict.incident else None,
            }
            for run, style, verdict in zip(report.runs, styles, report.verdicts, strict=True)
        ],
        "incidents": [
            {
                "key": one.key,
                "run": one.run,
                "step": one.step,
                "kind": one.kind_words,
                "action": one.done,
                "where": one.blamed.words,
                "stack": one.blamed.stack,
                "layer": one.blamed.layer,
            }
            for one in report.incidents
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


def _with_readings(run: ReportedRun, incidents: Sequence[Incident]) -> ReportedRun:
    """Return a run with what the probes read at its incidents among its readings."""
    return replace(run, readings=in_order([*seen_by_probes(incidents), *run.readings]))


def _summary(run: ReportedRun) -> dict[str, Any]:
    best = best_validation(run)
    return {
        "text": summary_of(run),
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
