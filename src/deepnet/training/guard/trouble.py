"""Where trouble began: what the numbers of the update tell, and what computing it again does."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from deepnet.probes.modules import module_places
from deepnet.probes.norm_input import NormInputs
from deepnet.probes.place import Place
from deepnet.probes.trace import BACKWARD, FORWARD, Event, Gain, Moment, Trace
from deepnet.training.guard.history import History
from deepnet.training.guard.signals import Signals, Watched
from deepnet.training.guard.signs import Sign, first_in_forward, forward_rank

Kind = Literal["nan", "spike", "explosion", "plateau"]

INPUT, LOSS = Place("", 0, "input"), Place("", 0, "loss")
"""What the model is given, and what is made of its output."""
OUTSTANDING = 10.0
"""Times the gain of the same module in other layers that mark a module as the one that went wrong."""
_SHIFTS = ("bias", "norm")
"""Roles that say nothing which their matrix does not: the gradient of a key's bias is zero but for rounding."""
_ROUNDING = 1e-6
"""Part of the gradient of its site below which that of a matrix is rounding."""


class Blame(NamedTuple):
    """A place and how it was found."""

    place: Place | None
    found_by: str


UNKNOWN = Blame(None, "nothing tells")


class Layout:
    """What is known of a model before it runs: the place of each module, the module of each norm."""

    def __init__(self, model: nn.Module, norm_inputs: NormInputs) -> None:
        self.modules = module_places(model)
        self._norms = norm_inputs.paths
        self._looped = norm_inputs.looped

    def before(self, sign: Sign) -> Event | None:
        """Return the event that a sign was measured at: its cause ran before it, unless layers that are looped did."""
        if sign.place is None or sign.place.stack in self._looped:
            return None
        path = self._norms.get(sign.place)
        return None if path is None else Event(path, "input")


def blame(sign: Sign, signals: Signals, history: History) -> Blame:
    """Return the place that the numbers of an update tell of, without running anything again.

    What is not finite in the forward pass is found at the first norm it enters, in the gradient alone at the parameter
    whose gradient is computed first. What stands out is found where the sign was measured, or else where the gradient
    has grown most over its median of the last updates. What enters a norm before a branch was made by the site before.
    """
    if sign.name == "not_finite":
        return _not_finite(signals, history)
    if sign.name == "norm_input" and sign.place is not None:
        return Blame(history.source_of(sign.place), "it makes what enters the norm of the sign")
    if sign.place is not None:
        return Blame(sign.place, "it is where the sign was measured")
    return _most_grown(signals, history)


def blame_again(
    sign: Sign, trace: Trace, layout: Layout, *, signals: Signals, history: History
) -> Blame | None:
    """Return the place that shows when the update is computed again; None where that shows nothing."""
    if sign.name == "not_finite":
        is_forward = signals.loss - signals.loss != 0
        again = (_born_forward if is_forward else _born_backward)(trace, layout.modules)
        return again or (None if is_forward else _first_gradient(signals, history, trace))
    if sign.name in ("layer_gradient", "step_update"):
        return None
    passes = (FORWARD, BACKWARD) if sign.name == "gradient_norm" else (FORWARD,)
    found = [(trace.outstanding(moments, until=layout.before(sign)), moments) for moments in passes]
    return next((_of_gain(g, m, layout) for g, m in found if g and g.excess > OUTSTANDING), None)


def describe(sign: Sign, signals: Signals, history: History) -> str:
    """Return one sentence on what was measured."""
    if sign.name == "layer_gradient":
        return _plateau(sign, history)
    measured = f"loss {signals.loss:.4g}, gradient norm {signals.gradient_norm:.4g}"
    if sign.limit is None:
        return f"{measured}: not finite"
    return f"{measured}; {sign.measure} {sign.value:.4g}, more than {sign.limit:.4g}: {sign.limit_from}"


def _plateau(sign: Sign, history: History) -> str:
    assert sign.place is not None
    lowest = sign.place == min(history.layers(), key=lambda place: place.layer)
    who = "it learns" if lowest else "it and the layers below learn"
    return (
        f"the gradient norm of layer {sign.place} is {sign.value:.1g} of the largest in its stack: "
        f"the loss will level off, as {who} nothing"
    )


def _born_forward(trace: Trace, places: Mapping[str, Place]) -> Blame | None:
    event = trace.first_not_finite(FORWARD)
    if event is None:
        began = trace.first_not_finite(BACKWARD)
        return Blame(LOSS, "all that the model computes is finite") if began else None
    if event.moment == "output":
        return Blame(places[event.path], _first_of("forward", "output"))
    caller = trace.caller[event.path]
    if caller is None:
        return Blame(INPUT, "what the model is given is not finite")
    return Blame(places[caller], "the first module, in forward order, that computes what is not")


def _born_backward(trace: Trace, places: Mapping[str, Place]) -> Blame | None:
    event = trace.first_not_finite(BACKWARD)
    if event is None:
        return None
    if event == trace.first(BACKWARD):
        return Blame(LOSS, "the gradient that reaches the model is not finite")
    return Blame(places[event.path], _first_of("backward", "gradient"))


def _first_of(order: str, what: str) -> str:
    return f"the first module, in {order} order, whose {what} is not finite"


def _of_gain(gain: Gain, moments: tuple[Moment, Moment], layout: Layout) -> Blame:
    what = "what it is given" if moments == FORWARD else "the gradient that reaches it"
    return Blame(
        layout.modules[gain.path],
        f"it makes {gain.excess:.3g} times as much of {what} as the same module of other layers",
    )


def _not_finite(signals: Signals, history: History) -> Blame:
    bad_inputs = _indices(~signals.norm_inputs.isfinite())
    if bad_inputs:
        place = first_in_forward([history.norm_inputs[index] for index in bad_inputs])
        how = f"it makes what enters {place}, the first norm, in forward order, whose input is not finite"
        return Blame(history.source_of(place), how)
    if signals.loss - signals.loss != 0:
        return UNKNOWN  # every gradient is spoilt by then
    return _first_gradient(signals, history) or UNKNOWN


def _first_gradient(signals: Signals, history: History, trace: Trace | None = None) -> Blame | None:
    """Return the parameter whose gradient is the first in backward order that is not finite, None where all are."""
    bad = _indices(~signals.gradients.isfinite())
    if not bad:
        return None
    ran = {} if trace is None else _backward_order(trace)

    def order(index: int) -> tuple[float, tuple[int, int, int], str, bool, int]:
        place, _, module = watched = history.parameters[index]
        is_matrix = place.role not in _SHIFTS
        late = -ran.get(module, len(ran)), forward_rank(watched.place)
        return *late, module if module in ran else "", is_matrix, index

    place = history.parameters[max(bad, key=order)].place
    return Blame(place, "the first parameter, in backward order, whose gradient is not finite")


def _backward_order(trace: Trace) -> dict[str, int]:
    reached = [event.path for event in trace.readings if event.moment == "output_gradient"]
    return {path: number for number, path in enumerate(reached)}


def _most_grown(signals: Signals, history: History) -> Blame:
    """Return the site whose gradient has grown most over its median, and the matrix in it of which that is most true.

    What is zero but for rounding adds nothing to the norm of its site, and so has no part in this.
    """
    rows = history.normal()
    if not rows or not history.parameters:
        return UNKNOWN
    sites: dict[Place, list[int]] = defaultdict(list)
    for index, watched in enumerate(history.parameters):
        sites[_site_of(watched)].append(index)
    usual = torch.stack([row.gradients for row in rows])
    growth = {site: _growth(signals.gradients, usual, held) for site, held in sites.items()}
    site = max(growth, key=lambda one: growth[one])
    if not growth[site]:
        return UNKNOWN
    roles = list(_contenders(sites[site], usual, history)) if site.layer else []
    most = max(roles, key=lambda index: _growth(signals.gradients, usual, [index]), default=None)
    place = site if most is None else history.parameters[most].place
    return Blame(place, f"its gradient has grown most over its median: {growth[site]:.3g} times")


def _site_of(watched: Watched) -> Place:
    """Return what a parameter is pooled with: its site, or where that is not known its module."""
    if watched.place.site.startswith(f"{watched.module}."):
        return Place("", 0, watched.module)
    return watched.place._replace(role="")


def _contenders(indices: Sequence[int], usual: Tensor, history: History) -> Iterator[int]:
    """Yield those of a site's parameters whose gradient is more than rounding."""
    floor = _usual(usual, indices) * _ROUNDING
    for index in indices:
        is_shift = history.parameters[index].place.role in _SHIFTS
        if not is_shift and _usual(usual, [index]) > floor:
            yield index


def _usual(usual: Tensor, indices: Sequence[int]) -> float:
    return float(usual[:, list(indices)].norm(dim=1).median())


def _growth(gradients: Tensor, usual: Tensor, indices: Sequence[int]) -> float:
    """Return how many times its median the norm over some parameters is; 0 where they have no gradient."""
    median = _usual(usual, indices)
    return float(gradients[list(indices)].norm()) / median if median else 0.0


def _indices(mask: Tensor) -> list[int]:
    indices: list[int] = mask.nonzero().flatten().tolist()
    return indices
