"""Incidents of the guard as the page speaks of them: here, and only here, the fields of a record are read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from deepnet.report.folder import ReportedRun
from deepnet.report.places import Blamed, blamed_of
from deepnet.report.readings import Reading, reading_of
from deepnet.report.rounding import real, short
from deepnet.report.wording import ACTIONS, KINDS


@dataclass(frozen=True, kw_only=True)
class Incident:
    """What the guard saw and did."""

    key: str
    run: int
    step: int
    kind: str
    """nan, spike, explosion or plateau, as recorded."""
    action: str
    """warn, skip, roll_back and so on, as recorded."""
    blamed: Blamed
    message: str
    back_to: int | None
    loss: float | None
    gradient_norm: float | None
    measure: str
    """What it was that left its limits, in words; "" in a record that does not say so."""
    value: float | None
    limit: float | None
    limit_from: str
    """What the limit is made of, in words."""
    found_by: str
    """How the place was found, in words."""
    reading: Reading | None
    """What the probes read at that moment, where it is recorded."""
    last: dict[str, Any]
    """The content of its file in incidents/, empty where there is none."""

    @property
    def steps(self) -> list[int]:
        """The last steps, this one included."""
        steps = self.last.get("steps")
        return [step for step in steps if type(step) is int] if isinstance(steps, list) else []

    def last_points(self, name: str) -> list[tuple[int, Any]]:
        """Return a number of the last steps, by step."""
        values = self.last.get(name)
        return [*zip(self.steps, values if isinstance(values, list) else [], strict=False)]

    def last_rows(self, name: str) -> dict[str, Any]:
        """Return what was measured in the layers in the last steps: place -> one list over layers per step."""
        places = self.last.get(name)
        return places if isinstance(places, dict) else {}

    @property
    def kind_words(self) -> str:
        """The kind as the page calls it."""
        return KINDS.get(self.kind, self.kind)

    @property
    def done(self) -> str:
        """What was done about it, in words."""
        words = ACTIONS.get(self.action, self.action)
        if self.back_to is None:
            return words
        joint = "back to" if self.action == "roll_back" else "and back to"
        return f"{words.removesuffix(' back')} {joint} update {self.back_to:,}"

    @property
    def cause(self) -> str:
        """One sentence on what was measured."""
        if not self.measure or self.kind == "plateau":
            return _sentence(self.message)
        if self.value is None or self.limit is None:
            return _sentence(self.measure)
        made = f", {self.limit_from}" if self.limit_from else ""
        return _sentence(f"{self.measure}: {self.value:.4g}; the limit was {self.limit:.4g}{made}")


def incidents_of(run: ReportedRun, number: int) -> list[Incident]:
    """Return the incidents of one run, the `number`-th of the page, in their order."""
    return [
        _incident(record, run=number, key=f"incident-{number}-{place}")
        for place, record in enumerate(run.incidents)
    ]


def seen_by_probes(incidents: Sequence[Incident]) -> list[Reading]:
    """Return what the probes read at the incidents that the run did not go back from."""
    kept = [one for one in incidents if one.back_to is None]
    return [one.reading for one in kept if one.reading]


def _incident(record: dict[str, Any], *, run: int, key: str) -> Incident:
    details = record["details"] if isinstance(record["details"], dict) else {}
    back_to = record.get("back_to")
    return Incident(
        key=key,
        run=run,
        step=record["step"],
        kind=str(record.get("kind")),
        action=str(record.get("action")),
        blamed=blamed_of(record.get("where")),
        message=_text(record, "message"),
        back_to=back_to if isinstance(back_to, int) else None,
        loss=short(real(record.get("loss"))),
        gradient_norm=short(real(record.get("gradient_norm"))),
        measure=_text(record, "measure") or _text(record, "sign").replace("_", " "),
        value=short(real(record.get("value"))),
        limit=short(real(record.get("limit"))),
        limit_from=_text(record, "limit_from"),
        found_by=_text(record, "found_by"),
        reading=_reading(details.get("probes"), record["step"]),
        last=details,
    )


def _reading(found: object, step: int) -> Reading | None:
    """Return a reading of its own step where it has one: the latest before an incident that was not looked into."""
    if not isinstance(found, dict) or not found:
        return None
    own = found.get("step")
    return reading_of({**found, "step": own if type(own) is int else step})


def _text(record: dict[str, Any], key: str) -> str:
    found = record.get(key)
    return found if isinstance(found, str) else ""


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""
