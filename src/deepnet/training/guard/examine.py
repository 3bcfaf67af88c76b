"""What is looked at once the guard has found something: the update computed again, and the probes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from deepnet.probes.place import Place, by_layer
from deepnet.probes.trace import Moment, Trace, rms_by
from deepnet.training.guard.judge import Verdict
from deepnet.training.guard.signals import Signals
from deepnet.training.guard.trouble import Layout, blame_again
from deepnet.training.session import Session
from deepnet.training.state import Evidence

_MOST_EVENTS = 10
"""Events that are not finite which the details list: the first ones."""
_TABLES: dict[str, Moment] = {"output": "output", "output_gradient": "output_gradient"}


def examine(
    session: Session, verdict: Verdict, signals: Signals, compute_again: Callable[[], None]
) -> tuple[Verdict, Evidence]:
    """Compute an update again with every module listened to, and ask the probes; on every rank at once.

    Returns the verdict with the place that showed, and everything that was measured. A run goes on where that fails,
    unless its engine has the ranks meet in every pass.
    """
    model = session.engine.model
    layout, trace = Layout(model, session.norm_inputs), Trace(model)
    failure = _failure(trace, compute_again)
    trace.pool(session.ranks.total, session.ranks.device)
    again = _table(trace, layout.modules) if trace.readings else {"failed": failure}
    evidence = Evidence(again=again, probes=session.probes.look())
    history = session.trained.guard.history
    found = blame_again(verdict.sign, trace, layout, signals=signals, history=history)
    if found is not None:
        verdict = replace(verdict, where=found.place, found_by=found.found_by)
    if verdict.sign.name == "not_finite" and trace.readings and not _not_finite(trace, {}):
        gone = f"{verdict.found_by}; computed again, everything was finite"
        verdict = replace(verdict, found_by=gone)
    return verdict, evidence


def _failure(trace: Trace, compute_again: Callable[[], None]) -> str:
    """Run it with the trace open, and return what went wrong, such as a lack of memory."""
    try:
        with trace.open():
            compute_again()
    except Exception as error:  # a loss that cannot be asked twice must not cost the run
        trace.forget()
        return f"{type(error).__name__}: {error}"
    return ""


def _table(trace: Trace, places: Mapping[str, Place]) -> dict[str, Any]:
    """Return the root mean squares by place and layer, and what was not finite, first things first."""
    num_layers: dict[str, int] = {}
    for place in places.values():
        num_layers[place.stack] = max(place.layer, num_layers.get(place.stack, 0))
    tables = {}
    for name, moment in _TABLES.items():
        readings = rms_by(trace, moment, places)
        within = {place: rms for place, rms in readings.items() if place.layer or place.site}
        tables[name] = by_layer(within, num_layers=num_layers)
    return {**tables, "not_finite": _not_finite(trace, places)[:_MOST_EVENTS]}


def _not_finite(trace: Trace, places: Mapping[str, Place]) -> Sequence[str]:
    return [
        f"{event.moment} of {places.get(event.path, event.path)}"
        for event, seen in trace.readings.items()
        if not seen.is_finite
    ]
