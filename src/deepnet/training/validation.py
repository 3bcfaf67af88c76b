"""What a run measures on held-out text: each rank a share of it, and the figures from all shares together."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from deepnet.training.config import TrainingConfig
from deepnet.training.engine.ranks import Ranks

Validate = Callable[[nn.Module, int], Mapping[str, float]]
"""(model in evaluation mode, updates done) -> figures, among them the one that training.keep_best names.

Called on the writer alone; on every rank, where each holds a part of the model, and then alike."""


class Validation(ABC):
    """A validation that every rank takes part in."""

    @abstractmethod
    def measure(self, model: nn.Module, step: int) -> Any:
        """Return what this rank finds on its share, waiting for no other; `step` is the updates done.

        The model is in evaluation mode. Where each rank holds a part of it, every share is the whole.
        """

    @abstractmethod
    def combine(self, found: Sequence[Any]) -> Mapping[str, float]:
        """Return the figures, among them the one that training.keep_best names; called on the writer.

        `found` is what the ranks measured, in their order, or one of them where each measured the whole.
        """


@dataclass(frozen=True)
class _Alone(Validation):
    """A function that does the whole of it."""

    validate: Validate
    is_asked: bool

    def measure(self, model: nn.Module, step: int) -> Mapping[str, float]:
        return dict(self.validate(model, step)) if self.is_asked else {}

    def combine(self, found: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
        return found[0]


def taken_part_in(
    validate: Validate | Validation | None, *, training: TrainingConfig, ranks: Ranks
) -> Validation | None:
    """Return a validation for all ranks, in which a function is called as `Validate` says."""
    if validate is None or isinstance(validate, Validation):
        return validate
    return _Alone(validate, is_asked=ranks.is_writer or num_shares(training, ranks) == 1)


def num_shares(training: TrainingConfig, ranks: Ranks) -> int:
    """Return into how many shares the text of a validation is parted: 1 where each rank holds a part of the model."""
    return 1 if training.engine == "sharded" else ranks.world_size
