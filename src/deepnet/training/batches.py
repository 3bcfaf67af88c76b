"""What the loop asks of the data, and the smallest thing that answers: a list of batches."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from deepnet.errors import DataError


class Batch(Protocol):
    """Anything that can be moved to a device; only the loss looks inside."""

    def to(self, device: torch.device, /) -> "Batch":
        """Return the batch on a device."""


class Update(Protocol):
    """One update of the optimiser: micro-batches whose gradients are added."""

    @property
    def batches(self) -> Sequence[Batch]:
        """Micro-batches of this rank: of n ranks, rank r has every n-th of the update's, from the r-th on."""

    @property
    def num_tokens(self) -> int:
        """What the summed loss is divided by: target tokens of the whole update, over all ranks."""


class Updates(Protocol):
    """A training set, cut into updates that are a pure function of the epoch; `data.loader.UpdateLoader` is one."""

    def updates(self, epoch: int, start: int = 0) -> Iterator[Update]:
        """Yield the updates of an epoch from the `start`-th on."""

    def updates_per_epoch(self, epoch: int) -> int:
        """Return the number of updates of an epoch, always the same; it may be an estimate.

        The time left relies on that of epoch 0, and so does a learning rate that falls towards training.max_epochs.
        """


@dataclass(frozen=True)
class ListedUpdate:
    """An update over the caller's own batches."""

    batches: tuple[Batch, ...]
    num_tokens: int


@dataclass(frozen=True)
class ListedUpdates:
    """The caller's own updates, each epoch the same in the same order; one process only."""

    listed: Sequence[ListedUpdate]

    def updates(self, epoch: int, start: int = 0) -> Iterator[Update]:
        """Yield the updates from the `start`-th on."""
        return iter(self.listed[start:])

    def updates_per_epoch(self, epoch: int) -> int:
        """Return the number of updates."""
        return len(self.listed)


@dataclass(frozen=True)
class Position:
    """An update with its place in the run."""

    update: Update
    epoch: int
    index: int
    ends_epoch: bool

    @property
    def following(self) -> tuple[int, int]:
        """The epoch and the place in it of the next update."""
        return (self.epoch + 1, 0) if self.ends_epoch else (self.epoch, self.index + 1)


def updates_from(loader: Updates, *, epoch: int, start: int) -> Iterator[Position]:
    """Yield the updates from `start` of `epoch` on, epoch after epoch, without end.

    One update is read ahead, so that the last one of an epoch is known as such. Raises DataError for an empty epoch.
    """
    for current, following in itertools.pairwise(_places(loader, epoch, start)):
        yield Position(*current, ends_epoch=following[1] != current[1])


def _places(loader: Updates, epoch: int, start: int) -> Iterator[tuple[Update, int, int]]:
    while True:
        index = start - 1
        for index, update in enumerate(loader.updates(epoch, start), start=start):
            yield update, epoch, index
        if index < 0:
            raise DataError(f"epoch {epoch} has no update; the training set is empty")
        epoch, start = epoch + 1, 0
