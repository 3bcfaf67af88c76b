"""A budget of memory, and the ways of training that trade time for memory, the fastest first."""

import math
from collections.abc import Iterator
from typing import Any

from pydantic import field_validator

from deepnet.config import Section
from deepnet.planning.wording import to_bytes
from deepnet.training.config import TrainingConfig

CHOSEN = ("recompute", "recompute_segment", "step_in_backward")
"""The keys of [training] that a budget decides."""
_STATES_OF_A_LAYER = 14
"""How many states a layer's activations take, about: 50 layers a side with d 64, results/plan."""


class MemoryConfig(Section):
    """What memory a run may take."""

    budget: str = ""
    """The most memory of the process, or on a card of its tensors, such as "8GB" or "512MiB"; empty: no limit. When a
    run begins, the fastest way to train is taken whose planned peak is within it: as the recipe says, or besides with
    training.step_in_backward, training.recompute and training.recompute_segment. Where none is, the run is refused."""

    @field_validator("budget")
    @classmethod
    def _is_a_size(cls, given: str) -> str:
        if given:
            to_bytes(given)
        return given

    @property
    def num_bytes(self) -> int:
        """Return the budget in bytes; 0 where there is none."""
        return to_bytes(self.budget) if self.budget else 0


def list_ways(
    training: TrainingConfig, *, depth: int, steps_in_backward: bool
) -> list[TrainingConfig]:
    """Return the section in the ways that keep what it asks for, the fastest first.

    A forward pass that is computed again costs more than steps in the backward pass, which are there where they are
    possible. `depth` are the layers that run of the deeper stack.
    """
    in_backward = [True] if training.step_in_backward else [False, True]
    found = [
        {**again, "step_in_backward": steps}
        for again in _recomputed(training, depth)
        for steps in in_backward
        if steps_in_backward or not steps
    ]
    ways = [training.model_copy(update=changes) for changes in found]
    return sorted(ways, key=lambda way: (_passes_again(way), way.step_in_backward))


def describe_way(way: TrainingConfig, asked: TrainingConfig) -> str:
    """Return what a way changes of what was asked for."""
    changes = [
        f"training.{key} = {str(getattr(way, key)).lower()}"
        for key in CHOSEN
        if getattr(way, key) != getattr(asked, key)
    ]
    return " and ".join(changes) or "as the recipe says"


def _recomputed(training: TrainingConfig, depth: int) -> Iterator[dict[str, Any]]:
    """Yield what is computed again: what the section asks for, then what keeps less."""
    if not training.recompute:
        yield {}
    for segment in _segments(training.recompute_segment, depth):
        yield {"recompute": True, "recompute_segment": segment}


def _segments(asked: int, depth: int) -> list[int]:
    """Return the lengths of segments to try from the one asked for on."""
    if asked != 1:
        return list(dict.fromkeys([asked, 0]))
    # where the states between segments take as much as the activations of one of them
    balanced = max(round(math.sqrt(depth / _STATES_OF_A_LAYER)), 1)
    return list(dict.fromkeys([1, balanced, 0]))


def _passes_again(way: TrainingConfig) -> int:
    """Return how many forward passes are computed again."""
    return way.recompute + (way.recompute and way.recompute_segment == 0)
