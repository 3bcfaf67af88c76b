"""One pass forward and backward, module by module in the order of execution: where what is not finite was born.

Every module is listened to, whatever the model: what it is given and returns, and the gradients of both. What a module
is given is handed on as a view of its own, so that the gradient it sends back is told from that of its neighbours.
Nothing that is computed changes.
"""

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from deepnet.probes.listening import is_recomputing, sum_of_squares
from deepnet.probes.place import Place

Moment = Literal["input", "output", "output_gradient", "input_gradient"]
FORWARD: tuple[Moment, Moment] = ("input", "output")
BACKWARD: tuple[Moment, Moment] = ("output_gradient", "input_gradient")
MOMENTS = (*FORWARD, *BACKWARD)
"""What is seen of a module: what it is given and returns, the gradient that reaches it and the one it sends on."""
_PEERS = re.compile(r"\d+")
_NEAR = 4.0
"""Times that the largest excess may be that of a module which ran earlier, for that one to be where it began."""


class Event(NamedTuple):
    """A moment of a module, by its path from the model; all calls of the module count as one."""

    path: str
    moment: Moment


class Reading(NamedTuple):
    """What passed at an event, over all calls."""

    is_finite: bool
    """Whether every element was; -inf alone, with which masks are made, does not count in the forward pass."""
    rms: float
    """Root mean square of the first tensor; not finite where that is not, NaN where it has no elements."""


class Trace:
    """Listens to the passes of a model while it is open; `readings` are those of all processes once they are pooled."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self._tallies: dict[Event, Tensor] = {}
        self._log: list[tuple[Event, Tensor]] = []
        self._first: dict[tuple[Moment, Moment], Event | None] = {}
        self._running: list[str] = []
        self.caller: dict[str, str | None] = {}
        """The module inside which each ran, by path; None for the first."""
        self.readings: dict[Event, Reading] = {}
        """In the order in which the events first happened."""

    @contextmanager
    def open(self) -> Iterator[None]:
        """Listen to every module meanwhile."""
        with ExitStack() as hooks:
            for module, paths in self._paths().items():
                enter = partial(self._enter, paths)
                hooks.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
                hooks.callback(module.register_forward_hook(self._leave).remove)
            yield

    def _paths(self) -> dict[nn.Module, list[str]]:
        """Return every path of each module: two sites may share one."""
        paths: dict[nn.Module, list[str]] = defaultdict(list)
        for path, module in self._modules.items():
            paths[module].append(path)
        return paths

    def pool(self, total: Callable[[Tensor], Tensor], device: torch.device) -> None:
        """Read what was seen; `total` sums a tensor over all processes, each of which must call this."""
        events = [Event(path, moment) for path in self._modules for moment in MOMENTS]
        nothing = torch.zeros(3, dtype=torch.float64, device=device)
        sums = total(torch.stack([self._tallies.get(event, nothing) for event in events]))
        rows = dict(zip(events, sums.tolist(), strict=True))
        self.readings = {event: _reading(*rows[event]) for event in self._tallies}
        self._first = {
            moments: self._first_of_all(moments, events, total, device)
            for moments in (FORWARD, BACKWARD)
        }

    def _first_of_all(
        self,
        moments: tuple[Moment, Moment],
        events: list[Event],
        total: Callable[[Tensor], Tensor],
        device: torch.device,
    ) -> Event | None:
        """Return where it began on this process, or else on another."""
        own = self._born(moments)
        marks = torch.tensor([float(event == own) for event in events], device=device)
        marked = zip(events, total(marks).tolist(), strict=True)
        return own or next((event for event, mark in marked if mark), None)

    def _born(self, moments: tuple[Moment, Moment]) -> Event | None:
        """Return the first event of one pass that was not finite on this process, call by call."""
        log = [(event, bad) for event, bad in self._log if event.moment in moments]
        flags = torch.stack([bad for _, bad in log]).tolist() if log else []
        return next((event for (event, _), bad in zip(log, flags, strict=True) if bad), None)

    def forget(self) -> None:
        """Take nothing that was seen into account."""
        self._tallies.clear()
        self._log.clear()

    def first_not_finite(self, moments: tuple[Moment, Moment]) -> Event | None:
        """Return the first event of a pass, in the order of execution, at which something was not finite."""
        return self._first.get(moments)

    def first(self, moments: tuple[Moment, Moment]) -> Event | None:
        """Return the first of those events."""
        return next((event for event in self.readings if event.moment in moments), None)

    def outstanding(self, moments: tuple[Moment, Moment], *, until: Event | None) -> "Gain | None":
        """Return the module whose gain in one pass is most out of line with that of its like in other layers.

        Of those that come near it the first to run, which is the innermost; up to the event `until` where one is given.
        None where no module has its like.
        """
        excess: dict[Event, float] = {}
        for before in (self._given, self._reaching) if moments == BACKWARD else (self._given,):
            for event, times in self._excess(moments, before):
                excess[event] = max(times, excess.get(event, 0.0))
        there = [(event, excess[event]) for event in self._before(until) if event in excess]
        near = max((times for _, times in there), default=0.0) / _NEAR
        return next((Gain(event.path, times) for event, times in there if times > near), None)

    def _before(self, until: Event | None) -> Iterator[Event]:
        for event in self.readings:
            if event == until:
                return
            yield event

    def _given(self, event: Event) -> Event | None:
        """Return what a module makes its output of, or the gradient that it sends on."""
        made_of: dict[Moment, Moment] = {"output": "input", "input_gradient": "output_gradient"}
        moment = made_of.get(event.moment)
        return None if moment is None else Event(event.path, moment)

    def _reaching(self, event: Event) -> Event | None:
        """Return the gradient that reaches the module around the one that it reaches."""
        caller = self.caller.get(event.path)
        return Event(caller, event.moment) if caller and event.moment == "output_gradient" else None

    def _excess(
        self, moments: tuple[Moment, Moment], before: Callable[[Event], Event | None]
    ) -> Iterator[tuple[Event, float]]:
        """Yield how many times the median of its like each gain is; not of norms, which undo a scale."""
        groups: dict[tuple[str, Moment], dict[Event, float]] = defaultdict(dict)
        for event, seen in self.readings.items():
            earlier = before(event) if event.moment in moments else None
            gain = seen.rms / (self._rms(earlier) or math.nan)
            if gain > 0 and any(p.ndim > 1 for p in self._modules[event.path].parameters()):
                groups[_PEERS.sub("*", event.path), event.moment][event] = gain
        for gains in groups.values():
            for event, gain in gains.items():
                others = [other for peer, other in gains.items() if peer != event]
                if others:
                    yield event, gain / statistics.median(others)

    def _rms(self, event: Event | None) -> float:
        seen = None if event is None else self.readings.get(event)
        return math.nan if seen is None else seen.rms

    def _enter(
        self, paths: list[str], _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any] | None:
        if is_recomputing():
            return None
        caller = self._running[-1] if self._running else None
        path = next((path for path in paths if path.startswith(f"{caller}.")), paths[0])
        self.caller.setdefault(path, caller)
        self._running.append(path)
        given = _Views()
        handed = given.of(args), {name: given.of(value) for name, value in kwargs.items()}
        self._see(path, "input", "input_gradient", handed)
        return handed

    def _leave(self, _: nn.Module, args: Any, output: Any) -> None:
        if not is_recomputing():
            self._see(self._running.pop(), "output", "output_gradient", output)

    def _see(self, path: str, forward: Moment, backward: Moment, held: Any) -> None:
        """Count the first tensor and all that are trained through, now and when their gradients arrive."""
        tensors = [x for x in tree_leaves(held) if isinstance(x, Tensor) and _is_real(x)]
        for number, x in enumerate({id(x): x for x in tensors}.values()):
            if number == 0 or x.requires_grad:
                self._count(Event(path, forward), x.detach(), counts=number == 0)
            if x.requires_grad and not isinstance(x, nn.Parameter):
                counted = partial(self._count, Event(path, backward), counts=number == 0)
                x.register_hook(partial(_look, counted))  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def _count(self, event: Event, x: Tensor, *, counts: bool) -> None:
        is_forward = event.moment in FORWARD
        bad = (x.isnan() | x.isposinf()) if is_forward else ~x.isfinite()
        square = sum_of_squares(x) if counts else x.new_zeros((), dtype=torch.float64)
        number = square.new_tensor(x.numel() if counts else 0)
        self._log.append((event, bad.any()))
        row = torch.stack([bad.any().double(), square, number])
        self._tallies[event] = self._tallies[event] + row if event in self._tallies else row


class Gain(NamedTuple):
    """A module and how many times as much it makes of what it is given as its like in other layers."""

    path: str
    excess: float


class _Views:
    """A view of each tensor of one call, the same where the tensor is the same: attention asks whether q is k."""

    def __init__(self) -> None:
        self._views: dict[int, Tensor] = {}

    def of(self, given: Any) -> Any:
        """Return an argument with views in place of its tensors; lists and mappings, which may be written to, stay."""
        if isinstance(given, Tensor):
            return self._of_tensor(given)
        if not isinstance(given, tuple):
            return given
        parts = [self.of(part) for part in given]
        return type(given)(*parts) if hasattr(given, "_fields") else tuple(parts)

    def _of_tensor(self, x: Tensor) -> Tensor:
        is_own = isinstance(x, nn.Parameter) or not x.requires_grad or not torch.is_grad_enabled()
        return x if is_own else self._views.setdefault(id(x), x.view_as(x))


def rms_by(trace: Trace, moment: Moment, places: Mapping[str, Place]) -> dict[Place, float]:
    """Return the readings of a moment by place; of the modules that share one, that of the first to run."""
    found: dict[Place, float] = {}
    for event, seen in trace.readings.items():
        if event.moment == moment:
            found.setdefault(places[event.path], seen.rms)
    return found


def _is_real(x: Tensor) -> bool:
    return x.is_floating_point() and x.numel() > 0


def _look(see: Callable[[Tensor], None], gradient: Tensor) -> None:
    see(gradient)


def _reading(bad: float, square: float, number: float) -> Reading:
    return Reading(bad == 0, (square / number) ** 0.5 if number else float("nan"))
