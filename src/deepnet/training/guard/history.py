"""The last updates as the guard saw them: what a new one is compared with, and what an incident shows."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from deepnet.probes.place import Place
from deepnet.training.guard.signals import Signals, Watched

REMEMBERED = 50
"""Updates that are kept."""
COMPARED = 16
"""Updates before the first comparison: a run's first ones differ among themselves."""


class Range(NamedTuple):
    """The highest values of several updates."""

    loss: float
    gradient_norm: float
    norm_inputs: Tensor
    loss_spread: float
    """How far the highest loss is above the lowest."""


class Attentions(NamedTuple):
    """The attentions of which both matrices train, [A], and their parameters."""

    places: list[Place]
    queries: list[int]
    keys: list[int]

    def ratios(self, gradients: Tensor) -> Tensor:
        """Return the gradient norm of the queries' matrix over that of the keys', [..., A] of [..., P]."""
        return gradients[..., self.queries] / gradients[..., self.keys]


class History:
    """The signals of the last 50 updates, and the places where their numbers were measured."""

    def __init__(
        self,
        *,
        parameters: Sequence[Watched],
        norm_inputs: Sequence[Place],
        norm_sources: Mapping[Place, Place] | None = None,
    ) -> None:
        self.parameters = list(parameters)
        self.norm_inputs = list(norm_inputs)
        self._norm_sources = norm_sources or {}
        self._seen: deque[tuple[Signals, bool]] = deque(maxlen=REMEMBERED)
        stacks = [p.place.stack for p in parameters if p.trains and p.place.layer]
        self._last_stack = _layers_of(self.parameters, stacks[-1]) if stacks else None
        self.attentions = _attentions_of(self.parameters)

    def append(self, signals: Signals, *, is_outlier: bool) -> None:
        """Add an update; no later one is compared with an outlier."""
        self._seen.append((signals, is_outlier))

    def all(self) -> list[Signals]:
        """Return every update, oldest first."""
        return [signals for signals, _ in self._seen]

    def normal(self) -> list[Signals]:
        """Return those that are no outliers, oldest first."""
        return [signals for signals, is_outlier in self._seen if not is_outlier]

    def highest(self) -> Range:
        """Return the highest values of the updates that are no outliers, of which there must be one."""
        rows = self.normal()
        losses = [row.loss for row in rows]
        return Range(
            loss=max(losses),
            gradient_norm=max(row.gradient_norm for row in rows),
            norm_inputs=torch.stack([row.norm_inputs for row in rows]).amax(0),
            loss_spread=max(losses) - min(losses),
        )

    def ratio_range(self) -> tuple[Tensor, Tensor]:
        """Return the lowest and highest ratio of queries to keys in the updates that are no outliers, [A] each.

        They are 0 and infinite where fewer than 16 updates had a gradient in both.
        """
        ratios = self.attentions.ratios(torch.stack([row.gradients for row in self.normal()]))
        there = ratios.isfinite() & (ratios > 0)
        known = there.sum(0) >= COMPARED
        lowest = ratios.where(there, ratios.new_tensor(torch.inf)).amin(0)
        highest = ratios.where(there, ratios.new_tensor(0.0)).amax(0)
        nothing, all_there_is = lowest.new_tensor(0.0), lowest.new_tensor(torch.inf)
        return lowest.where(known, nothing), highest.where(known, all_there_is)

    def source_of(self, norm: Place) -> Place:
        """Return the site that makes what enters a norm."""
        return self._norm_sources.get(norm, norm)

    def layers(self) -> list[Place]:
        """Return the layers of the last stack that train, the lowest first."""
        return [] if self._last_stack is None else self._last_stack.places

    def layer_shares(self, signals: Signals) -> dict[Place, float]:
        """Return the gradient norm of each layer of the last stack over the largest of them.

        The last stack is the decoder where there is one. A layer without any gradient is left out: it did not run.
        """
        if self._last_stack is None:
            return {}
        layers, of_parameter = self._last_stack
        squares = signals.gradients.double().square()
        sums = squares.new_zeros(len(layers) + 1).index_add_(0, of_parameter, squares)
        norms = sums[:-1].sqrt()
        shares = zip(layers, (norms / norms.max()).tolist(), strict=True)
        return {layer: share for layer, share in shares if share != 0.0}

    def tensors(self) -> dict[str, Tensor]:
        """Return everything as tensors to save, with one row per update."""
        rows = self.all()
        if not rows:
            return {}
        outliers = [is_outlier for _, is_outlier in self._seen]
        return {
            "steps": torch.tensor([row.step for row in rows]),
            "outliers": torch.tensor(outliers, dtype=torch.uint8),
            "lr": torch.tensor([row.lr for row in rows], dtype=torch.float64),
            "loss": torch.tensor([row.loss for row in rows], dtype=torch.float64),
            "gradient_norm": torch.tensor([row.gradient_norm for row in rows], dtype=torch.float64),
            "gradients": torch.stack([row.gradients for row in rows]),
            "norm_inputs": torch.stack([row.norm_inputs for row in rows]),
        }

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Take back what `tensors` gave; nothing where it is empty."""
        self._seen.clear()
        if not saved:
            return
        numbers = zip(
            *(
                saved[name].tolist()
                for name in ("steps", "lr", "loss", "gradient_norm", "outliers")
            ),
            saved["gradients"],
            saved["norm_inputs"],
            strict=True,
        )
        for step, lr, loss, norm, is_outlier, gradients, inputs in numbers:
            row = Signals(
                step=step,
                lr=lr,
                loss=loss,
                gradient_norm=norm,
                gradients=gradients,
                norm_inputs=inputs,
            )
            self.append(row, is_outlier=bool(is_outlier))


class _LayersOfStack(NamedTuple):
    """The layers of a stack that train, and for every parameter the number of its layer, one past the last if none."""

    places: list[Place]
    of_parameter: Tensor


def _attentions_of(parameters: Sequence[Watched]) -> Attentions:
    """Return the attentions with a matrix for queries and another for keys."""
    found: dict[Place, dict[str, int]] = {}
    for index, (place, trains, _) in enumerate(parameters):
        if trains and place.role in ("q", "k"):
            found.setdefault(place._replace(role=""), {})[place.role] = index
    both = {place: roles for place, roles in found.items() if len(roles) == 2}
    queries, keys = ([roles[role] for roles in both.values()] for role in ("q", "k"))
    return Attentions(list(both), queries, keys)


def _layers_of(parameters: Sequence[Watched], stack: str) -> _LayersOfStack:
    of_stack = [p.trains and p.place.layer > 0 and p.place.stack == stack for p in parameters]
    numbers = sorted(
        {p.place.layer for p, is_there in zip(parameters, of_stack, strict=True) if is_there}
    )
    index = {number: place for place, number in enumerate(numbers)}
    rows = [
        index[p.place.layer] if is_there else len(index)
        for p, is_there in zip(parameters, of_stack, strict=True)
    ]
    return _LayersOfStack([Place(stack, number) for number in numbers], torch.tensor(rows))
