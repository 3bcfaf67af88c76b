"""Translations of the test part beside their source and reference, the same sentences of every run."""

from collections.abc import Sequence
from dataclasses import dataclass

from deepnet.report.folder import ReportedRun, Samples

_SENTENCES = 8


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """One sentence of a test part and what some runs made of it."""

    number: int
    """Line in the files, from 1."""
    source: str
    reference: str
    translations: list[tuple[int, str]]
    """Run and its translation."""


@dataclass(frozen=True, kw_only=True)
class SampleTable:
    """Sentences, evenly spread over a test part that one run or several translated."""

    source_language: str
    target_language: str
    total: int
    sentences: list[Sentence]


def sample_tables(runs: Sequence[ReportedRun]) -> list[SampleTable]:
    """Return one table per test part: runs that translated the same text share one."""
    groups: list[list[int]] = []
    for number, run in enumerate(runs):
        if run.samples:
            same = [group for group in groups if _text(runs[group[0]]) == _text(run)]
            if same:
                same[0].append(number)
            else:
                groups.append([number])
    return [_table(runs, group) for group in groups]


def _text(run: ReportedRun) -> tuple[list[str], list[str]]:
    return (run.samples.source, run.samples.reference) if run.samples else ([], [])


def _table(runs: Sequence[ReportedRun], group: Sequence[int]) -> SampleTable:
    texts: list[tuple[int, Samples]] = [
        (number, samples) for number in group if (samples := runs[number].samples)
    ]
    first, data = texts[0][1], runs[group[0]].recipe.get("data", {})
    total = len(first.source)
    places = [round((part + 0.5) * total / _SENTENCES - 0.5) for part in range(_SENTENCES)]
    return SampleTable(
        source_language=str(data.get("source_language") or ""),
        target_language=str(data.get("target_language") or ""),
        total=total,
        sentences=[
            Sentence(
                number=place + 1,
                source=first.source[place],
                reference=first.reference[place],
                translations=[(number, samples.translation[place]) for number, samples in texts],
            )
            for place in (places if total > _SENTENCES else range(total))
        ],
    )
