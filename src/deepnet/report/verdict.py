"""The first thing that a page says of a run: how it ended, what happened, where, when, what was done, and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from deepnet.report.folder import ReportedRun
from deepnet.report.incidents import Incident
from deepnet.report.rounding import real
from deepnet.report.summary import last_step
from deepnet.report.windows import MOST_WINDOWS

_GRAVEST = ("spike", "plateau", "explosion", "nan")
"""Kinds of incidents, the gravest last."""
_LOST = 0.5
"""Part of all that the loss had fallen which it has risen again in a run that counts as diverged."""
_UNREST = 3
"""Usual differences of one record from the next that it must have risen at least."""
_FALLEN, _FALLEN_AFTER_PLATEAU = 0.95, 0.5
"""Parts of the first loss below which the last one must be for a run to have learned."""
_NO_TRANSLATION = 0.1
"""BLEU of the test part below which a translator translates nothing."""
_ENDS = 3
"""Records whose median is the first loss of a run, and the last."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer to "what happened?", for one run."""

    badge: str
    """running, finished, "finished, with incidents", "did not learn", diverged or interrupted."""
    headline: str
    facts: list[tuple[str, str]]
    """Where, when and what was done, each under its name."""
    cause: str
    link: str
    """The id of the part of the page that shows the moment, "" where nothing happened."""
    incident: Incident | None
    """The incident that all this is about."""
    others: int
    """Incidents besides."""


def verdict_of(run: ReportedRun, incidents: Sequence[Incident]) -> Verdict:
    """Return what to say first of one run."""
    badge = badge_of(run, incidents)
    decisive = _decisive(incidents)
    if decisive is None:
        return _without_incident(run, badge)
    drawn = incidents.index(decisive) < MOST_WINDOWS
    kind, place = decisive.kind_words, decisive.blamed.words
    return Verdict(
        badge=badge,
        headline=f"{_capital(kind)}{f' in {place}' if place else ''} at update {decisive.step:,}",
        facts=[
            ("Where", place or "no layer is named"),
            ("When", f"update {decisive.step:,}{_of_planned(run)}"),
            ("Done", decisive.done),
        ],
        cause=decisive.cause,
        link=decisive.key if drawn else f"row-{decisive.key}",
        incident=decisive,
        others=len(incidents) - 1,
    )


def badge_of(run: ReportedRun, incidents: Sequence[Incident]) -> str:
    """Return how a run stands, in a word or two."""
    if run.is_going_on:
        return "running"
    if _stopped_at(incidents, "nan", "explosion") or _ended_high(run):
        return "diverged"
    if _learned_nothing(run, incidents):
        return "did not learn"
    if not (run.has_bundle or run.scores):
        return "interrupted"
    return "finished, with incidents" if incidents else "finished"


def _decisive(incidents: Sequence[Incident]) -> Incident | None:
    """Return the incident that stopped the run, or else the first of the gravest kind."""
    if incidents and incidents[-1].action == "stop":
        return incidents[-1]
    return max(
        incidents,
        key=lambda one: (_GRAVEST.index(one.kind) if one.kind in _GRAVEST else -1, -one.step),
        default=None,
    )


def _of_planned(run: ReportedRun) -> str:
    planned = real(run.recipe.get("training", {}).get("max_steps"))
    return f" of {planned:,.0f}" if planned > 0 else ""


def _stopped_at(incidents: Sequence[Incident], *kinds: str) -> bool:
    return bool(incidents) and incidents[-1].action == "stop" and incidents[-1].kind in kinds


def _losses(run: ReportedRun) -> list[tuple[int, float]]:
    return [(record["step"], real(record["loss"])) for record in run.metrics if "loss" in record]


def _ended_high(run: ReportedRun) -> bool:
    """Return whether the last loss is no number, or has risen again by much of what it had fallen, in any unit."""
    losses = [loss for _, loss in _losses(run)]
    if len(losses) < 2 * _ENDS or losses[-1] != losses[-1]:
        return bool(losses) and losses[-1] != losses[-1]
    first, last, lowest = median(losses[:_ENDS]), median(losses[-_ENDS:]), min(losses)
    usual = median(abs(one - before) for before, one in pairwise(losses))
    return last - lowest > max(_LOST * (first - lowest), _UNREST * usual)


def _learned_nothing(run: ReportedRun, incidents: Sequence[Incident]) -> bool:
    """Return whether a run came to its end, or to a plateau, without a loss or translations that show any learning."""
    if _stopped_at(incidents, "plateau"):
        return True
    if not (run.has_bundle or run.scores):
        return False
    if run.scores and real(run.scores.get("bleu")) < _NO_TRANSLATION:
        return True
    losses = [loss for _, loss in _losses(run)]
    levelled = any(one.kind == "plateau" and one.action == "warn" for one in incidents)
    wanted = _FALLEN_AFTER_PLATEAU if levelled else _FALLEN
    return len(losses) >= 2 * _ENDS and median(losses[-_ENDS:]) > wanted * median(losses[:_ENDS])


def _without_incident(run: ReportedRun, badge: str) -> Verdict:
    headline, cause, link = {
        "running": ("Nothing has happened so far that the guard looks for", "", ""),
        "finished": ("Nothing happened that the guard looks for", "", ""),
        "interrupted": (
            f"Ended after update {last_step(run):,} without a finished model",
            "It was interrupted, or failed, or this folder is a part of the run; nothing was recorded that says why.",
            "",
        ),
        "diverged": (
            f"The loss rose{_since_lowest(run)}",
            "The guard recorded nothing, so that no layer can be named.",
            "chart-loss",
        ),
        "did not learn": (
            "The model learned next to nothing",
            _fallen(run),
            "chart-loss",
        ),
    }[badge]
    return Verdict(
        badge=badge, headline=headline, facts=[], cause=cause, link=link, incident=None, others=0
    )


def _since_lowest(run: ReportedRun) -> str:
    finite = [(loss, step) for step, loss in _losses(run) if loss == loss]
    if not finite:
        return " to no number at all"
    last = _losses(run)[-1][1]
    loss, step = min(finite)
    end = f"to {last:.4g}" if last == last else "until it was no number any more"
    return f" from {loss:.4g} at update {step:,} {end}"


def _fallen(run: ReportedRun) -> str:
    losses = [loss for _, loss in _losses(run)]
    bleu = real((run.scores or {}).get("bleu"))
    score = f" The test part scores {bleu:.1f} BLEU." if bleu == bleu else ""
    if len(losses) < 2 * _ENDS:
        return score.strip()
    first, last = median(losses[:_ENDS]), median(losses[-_ENDS:])
    return f"The training loss went from {first:.4g} to {last:.4g}.{score}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
