"""Line charts over updates: what metrics.jsonl records, and the probes that are one number per reading."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from deepnet.evaluation.tokenization import recorded_tokenization
from deepnet.report.folder import ReportedRun
from deepnet.report.incidents import Incident
from deepnet.report.readings import places_of
from deepnet.report.rounding import real, short, thinned
from deepnet.report.undone import kept_and_undone, taken_back
from deepnet.report.wording import CHARTS, STACKS, ChartWords, probe_words, stack_of

_MOST_POINTS = 1500
"""Points of one line on the page: more than a screen has columns."""
_WIDE = 30.0
"""Largest over smallest value from which a chart starts with a logarithmic axis."""

_MOST_ZEROS = 0.1
"""Part of the values that may be zero on an axis that starts logarithmic."""

Look = Literal["thin", "plain", "marked", "dotted", "star", "undone"]
Points = Iterable[tuple[int, Any]]


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of one run."""

    run: int
    label: str
    """What is drawn, beside the run's name."""
    look: Look
    steps: list[int]
    values: list[float | None]
    """None breaks the line."""
    left_out: int
    """Points that the line has in the file and not here."""


@dataclass(frozen=True, kw_only=True)
class LineChart:
    """A chart of numbers over updates."""

    key: str
    words: ChartWords
    log: bool
    series: list[Series]
    notes: list[str]


def training_charts(
    runs: Sequence[ReportedRun], incidents: Sequence[Sequence[Incident]]
) -> list[LineChart]:
    """Return the charts of metrics.jsonl and of the test part's BLEU, with what was undone as lines of their own."""
    drawn: dict[str, list[Series | None]] = {"loss": [], "bleu": []}
    for number, run in enumerate(runs):
        drawn["loss"] += [
            line(_recorded(run, "loss"), run=number, label="training", look="thin"),
            line(_recorded(run, "validation_loss"), run=number, label="validation", look="marked"),
        ]
        drawn["bleu"] += [
            line(_recorded(run, "validation_bleu"), run=number, label="validation", look="marked"),
            line(_test_bleu(run), run=number, label="test", look="star"),
        ]
        for key in ("lr", "gradient_norm", "tokens_per_second", "skipped_updates"):
            found = line(_recorded(run, key), run=number)
            drawn.setdefault(key, []).append(found)
        for key in ("loss", "gradient_norm", "lr"):
            drawn[key].append(_undone(run, incidents[number], key, number))
    if not any(any(found.values) for found in drawn["skipped_updates"] if found):
        del drawn["skipped_updates"]
    return [
        replace(one, notes=[*one.notes, *_bleu_notes(runs)]) if one.key == "bleu" else one
        for one in _charts(drawn, "metrics.jsonl")
    ]


def probe_charts(runs: Sequence[ReportedRun]) -> list[LineChart]:
    """Return the charts of probes of the last layer and the logits, with the theory's curve over the model update."""
    drawn: dict[str, list[Series | None]] = {"model_update": [], "step_update": []}
    for number, run in enumerate(runs):
        for key, found in drawn.items():
            found.append(line(_read(run, key, "output"), run=number, label="logits", look="thin"))
            found.append(line(_last_layer(run, key), run=number, label="last layer"))
        predicted = _read(run, "predicted_update", "output")
        theory = line(predicted, run=number, label="last layer, theory", look="dotted")
        drawn["model_update"].append(theory)
    drawn["logit_scale"] = [
        line(_read(run, "logit_scale", "output"), run=number) for number, run in enumerate(runs)
    ]
    return _charts(drawn, "probes.jsonl")


def outside_charts(runs: Sequence[ReportedRun]) -> list[LineChart]:
    """Return one chart per probe for its places outside the layers: embeddings, vocabulary, final norms."""
    shown = {("predicted_update", "output"), ("logit_scale", "output")}
    shown |= {(probe, "output") for probe in ("model_update", "step_update")}
    drawn: dict[str, list[Series | None]] = {}
    for number, run in enumerate(runs):
        for probe in dict.fromkeys(key for reading in run.readings for key in reading.probes):
            for place in places_of(run.readings, probe):
                if stack_of(place) is None and (probe, place) not in shown:
                    found = line(_read(run, probe, place), run=number, label=place)
                    drawn.setdefault(probe, []).append(found)
    return [
        chart(f"outside-{probe}", _outside_words(probe), series, "probes.jsonl")
        for probe, series in drawn.items()
        if any(series)
    ]


def line(points: Points, *, run: int, label: str = "", look: Look = "plain") -> Series | None:
    """Return a line through some points, broken where they go back to an earlier step; None for no value."""
    steps: list[int] = []
    values: list[float] = []
    for step, value in points:
        if steps and step <= steps[-1]:
            steps.append(step)
            values.append(real(None))
        steps.append(step)
        values.append(real(value))
    kept = thinned(values, _MOST_POINTS)
    rounded = [short(values[place]) for place in kept]
    if all(value is None for value in rounded):
        return None
    return Series(
        run=run,
        label=label,
        look=look,
        steps=[steps[place] for place in kept],
        values=rounded,
        left_out=len(values) - len(kept),
    )


def chart(key: str, words: ChartWords, series: Iterable[Series | None], file: str) -> LineChart:
    """Return a chart of those of some lines that there are."""
    found = [one for one in series if one]
    left_out = sum(one.left_out for one in found)
    note = f"{left_out:,} points are not drawn: of every stretch the lowest and the highest are; all are in {file}."
    log = words.may_be_log and _is_wide(one for one in found if one.look != "dotted")
    return LineChart(key=key, words=words, log=log, series=found, notes=[note] if left_out else [])


def _charts(drawn: dict[str, list[Series | None]], file: str) -> list[LineChart]:
    return [chart(key, CHARTS[key], series, file) for key, series in drawn.items() if any(series)]


def _recorded(run: ReportedRun, key: str) -> Points:
    return kept_and_undone(_written(run, key))[0]


def _written(run: ReportedRun, key: str) -> list[tuple[int, Any]]:
    return [(record["step"], record[key]) for record in run.metrics if key in record]


def _undone(
    run: ReportedRun, incidents: Sequence[Incident], key: str, number: int
) -> Series | None:
    """Return what a run went back from: as far as it is recorded, or else the last steps before it did."""
    recorded = [(record["step"], record[key]) for record in run.undone if key in record]
    points = [*kept_and_undone(_written(run, key))[1], *(recorded or taken_back(incidents, key))]
    return line(points, run=number, label="undone by going back", look="undone")


def _read(run: ReportedRun, probe: str, place: str, *, layer: int = 0) -> Points:
    """Return a probe's number at a place, by step: that of one layer, or the only one outside the layers."""
    found = [(r.step, r.probes.get(probe, {}).get(place)) for r in run.readings]
    return [
        (step, float(values[layer])) for step, values in found if values is not None and len(values)
    ]


def _last_layer(run: ReportedRun, probe: str) -> Points:
    """Return a probe's value at the last layer of the last stack."""
    stacks = [stack for stack in STACKS if stack in places_of(run.readings, probe)]
    return _read(run, probe, stacks[-1], layer=-1) if stacks else []


def _bleu_notes(runs: Sequence[ReportedRun]) -> list[str]:
    """Return how each run's BLEUs were computed, and that they cannot be compared where they were not alike."""
    known = {run.name: run.bleu_signature for run in runs if run.bleu_signature}
    notes = [f"{name}: {signature}" for name, signature in known.items()]
    if len({recorded_tokenization(signature) for signature in known.values()}) > 1:
        notes.append(
            "The runs' BLEUs split text in different ways (tok) and cannot be compared with each other."
        )
    return notes


def _test_bleu(run: ReportedRun) -> Points:
    last = max((record["step"] for record in run.metrics), default=0)
    return [(last, run.scores["bleu"])] if run.scores and "bleu" in run.scores else []


def _outside_words(probe: str) -> ChartWords:
    words = probe_words(probe)
    return ChartWords(
        title=f"{words.title}, outside the layers", about=words.about, unit=words.title.lower()
    )


def _is_wide(series: Iterable[Series]) -> bool:
    """Return whether the values, none negative and few zero, go over more than one and a half powers of ten."""
    values = [value for one in series for value in one.values if value is not None]
    positive = [value for value in values if value > 0]
    if not positive or min(values) < 0 or values.count(0) > _MOST_ZEROS * len(values):
        return False
    return max(positive) > _WIDE * min(positive)
