"""Residual sites of a run: where their norms are, and how much their skips and branches are scaled, measured."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from deepnet.audit.flow import Flow, Sum
from deepnet.audit.tape import Operation, Value

_EXACT = 1e-4
"""Relative spread within which a measured scale counts as one number; models that norm in float32 reach 1e-6."""


@dataclass(frozen=True)
class MeasuredScale:
    """How much of a change of one value arrives at another: one number per channel."""

    channels: Tensor
    parameter: str | None
    """The parameter that makes it, where it is one that is trained."""

    @property
    def number(self) -> float | None:
        """Return the one number that all channels share, or None."""
        mean = self.channels.mean()
        spread = (self.channels - mean).abs().max()
        return round(float(mean), 12) if spread <= _EXACT * mean.abs() else None

    def shown(self) -> float | list[float]:
        """Return the number, or the least and the greatest of the channels."""
        number = self.number
        if number is not None:
            return number
        return [float(self.channels.min()), float(self.channels.max())]


@dataclass(frozen=True)
class Norms:
    """Where the norms of a site stand."""

    pre: bool
    out: bool
    post: bool

    def shown(self) -> str:
        """Return "pre", "post", "pre+post", ... or "none"."""
        places = {"pre": self.pre, "out": self.out, "post": self.post}
        return "+".join(name for name, there in places.items() if there) or "none"


@dataclass(eq=False)
class MeasuredSite:
    """One residual site as measured; None where a scale is not a number per channel."""

    sum: Sum
    norms: Norms
    skip: MeasuredScale | None
    branch: MeasuredScale | None


def measure_sites(flow: Flow) -> list[MeasuredSite]:
    """Return every residual site in order; a branch that enters two streams counts where it enters the read one."""
    return [measure_site(flow, one) for one in main_sums(flow)]


def main_sums(flow: Flow) -> list[Sum]:
    """Return one sum per branch: of several, the one that later branches read."""
    groups: dict[frozenset[Value], list[Sum]] = {}
    for one in flow.sums.values():
        groups.setdefault(one.roots, []).append(one)
    forks = [origin for one in flow.sums.values() for origin in flow.origins(one.fork)]

    def importance(one: Sum) -> tuple[int, int]:
        return one.fork.position, forks.count(one.output)

    chosen = (max(group, key=importance) for group in groups.values())
    return sorted(chosen, key=lambda one: one.operation.position)


def measure_site(flow: Flow, one: Sum) -> MeasuredSite:
    """Return one site's norms and scales."""
    outs = {root: _last_norm(flow, root, one) for root in one.roots}
    starts = [outs[root] or root for root in one.roots]
    branches = [measure_scale(flow, start, one.output) for start in starts]
    return MeasuredSite(
        sum=one,
        norms=Norms(
            pre=_is_normed_first(flow, one),
            out=any(out is not None for out in outs.values()),
            post=events_after(flow, one.output) == {"norm"},
        ),
        skip=measure_scale(flow, one.fork, one.output),
        branch=_common(branches),
    )


def measure_scale(flow: Flow, start: Value, end: Value) -> MeasuredScale | None:
    """Return how a change of `start` arrives at `end` while every product keeps its result; None if not per channel."""
    generator = torch.Generator().manual_seed(0)
    change = torch.randn(start.width, dtype=torch.float64, generator=generator).to(start.tensor)
    changed = flow.tape.replay(start, start.tensor + change, end, held=flow.is_heavy)
    if start.width != end.width:
        return None
    # the same change at every position, so that it does not matter which axis is time
    ratios = ((changed - end.tensor) / change).reshape(-1, end.width).double()
    channels = ratios.mean(0)
    if (ratios - channels).abs().max() > _EXACT * max(1.0, float(channels.abs().max())):
        return None
    return MeasuredScale(channels, _trained(flow, start, end))


def _trained(flow: Flow, start: Value, end: Value) -> str | None:
    """Return the parameter that multiplies what goes from one value to another, if any does."""
    for operation in flow.reached(start, end, held=flow.is_heavy):
        for value in operation.inputs:
            if not flow.of(value) and operation not in flow.normed and flow.learned(value):
                return flow.learned(value)
    return None


def _common(scales: list[MeasuredScale | None]) -> MeasuredScale | None:
    """Return the one scale that all share, or None."""
    first = scales[0]
    for other in scales[1:]:
        if first is None or other is None or not torch.allclose(first.channels, other.channels):
            return None
    return first


def _last_norm(flow: Flow, root: Value, one: Sum) -> Value | None:
    """Return the output of the last norm between a branch's product and the sum."""
    between = flow.reached(root, one.output, held=flow.is_heavy)
    norms = [operation for operation in between if operation in flow.normed]
    last = max(norms, key=lambda operation: operation.position, default=None)
    return None if last is None else last.output


def _is_normed_first(flow: Flow, one: Sum) -> bool:
    """Return whether all that the branch reads of the stream it reads through a norm (or DyT's tanh)."""
    reached = flow.reached(one.fork, one.output)
    events = set(_events(flow, one.fork, reached))
    return bool(events) and "product" not in events


def first_norms(flow: Flow, value: Value) -> Iterator[Operation]:
    """Yield the norms that read a stream."""
    return (operation for operation in _readers(flow, value, None) if operation in flow.normed)


def events_after(flow: Flow, value: Value) -> set[str]:
    """Return what a stream meets first: a "norm", a "product", a "sum" or another "function"."""
    readers = list(_readers(flow, value, None))
    sums = {"sum" for operation in readers if operation.output in flow.sums}
    return sums | set(_events(flow, value, None))


Event = Literal["norm", "product", "function"]


def _events(flow: Flow, value: Value, within: set[Operation] | None) -> Iterator[Event]:
    """Yield what a stream meets first, residual additions left out."""
    for operation in _readers(flow, value, within):
        if operation in flow.normed:
            yield "norm"
        elif flow.is_heavy(operation):
            yield "product"
        elif operation.output not in flow.sums:
            yield "function"


def _readers(flow: Flow, value: Value, within: set[Operation] | None) -> Iterator[Operation]:
    """Yield what first does more with a stream than to move, scale, shift or add it."""
    seen, waiting = set(), [value]
    while waiting:
        for operation in waiting.pop().read_by:
            if operation in seen or operation in flow.statistics:
                continue
            if within is not None and operation not in within:
                continue
            seen.add(operation)
            ends = operation in flow.normed or operation.output in flow.sums
            if ends or not flow.carried(operation):
                yield operation
            else:
                waiting += operation.outputs
