"""Which rows make which micro-batch of which update: a pure function of lengths, config, seed and epoch.

A row is a pair, or a sentence of one text. An epoch is walked in windows so that memory is bounded at any size: the
corpus is cut into blocks of consecutive rows, a window is a random group of blocks, and within a window rows are
shuffled, grouped by length into micro-batches that fill the token budget, and the micro-batches shuffled. Consecutive
micro-batches make an update; what is left at the end of an epoch joins its last update, so that no row is dropped and
no update is smaller than the others (unless the whole epoch is). Nothing here knows how many processes there are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from deepnet.config import Section

Indices = NDArray[np.int64]

# A window is grouped by length in random halves: were it grouped whole, a small corpus would have nearly the same
# micro-batches in every epoch; each further halving costs another per cent of padding.
_POOLS = 2
_COUNTED_ROWS = 100_000_000


class BatchConfig(Section):
    """How many sentences an update sees."""

    max_tokens: Annotated[int, Field(ge=1)] = 4096
    """Most tokens of a micro-batch, padding and eos included: sentences x longest of source and target (or of one
    text)."""
    micro_batches_per_update: Annotated[int, Field(ge=1)] = 1
    """Micro-batches whose gradients make one update, over all processes and accumulation steps."""


class Lengths(Protocol):
    """What planning needs to know of a dataset."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def lengths(self, start: int = 0, stop: int | None = None) -> tuple[Indices, ...]:
        """Return the lengths of each side, eos included, of rows `start` to `stop`."""


@dataclass(frozen=True)
class WindowSize:
    """How much of a corpus is planned at once: `blocks` runs of `block_rows` consecutive rows."""

    block_rows: int = 1 << 14
    blocks: int = 128


@dataclass(frozen=True)
class MicroBatch:
    """The rows of one micro-batch, and the lengths of their last side, the one to be predicted, eos included."""

    rows: Indices
    lengths: Indices


def plan_updates(
    dataset: Lengths,
    config: BatchConfig,
    *,
    seed: int,
    epoch: int,
    window: WindowSize | None = None,
) -> Iterator[tuple[MicroBatch, ...]]:
    """Yield the micro-batches of each update of an epoch; every row is in exactly one of them."""
    size = config.micro_batches_per_update
    waiting: list[MicroBatch] = []
    for number, blocks in enumerate(_windows(len(dataset), seed, epoch, window or WindowSize())):
        random = np.random.default_rng([seed, epoch, number + 1])
        waiting += _plan_window(dataset, blocks, config.max_tokens, random)
        while len(waiting) >= 2 * size:
            yield tuple(waiting[:size])
            del waiting[:size]
    if waiting:
        yield tuple(waiting)


def count_updates(dataset: Lengths, config: BatchConfig, *, seed: int, epoch: int) -> int:
    """Return the number of updates of an epoch: exact, or from one window where planning would take minutes."""
    if len(dataset) <= _COUNTED_ROWS:
        return sum(1 for _ in plan_updates(dataset, config, seed=seed, epoch=epoch))
    blocks = next(_windows(len(dataset), seed, epoch, WindowSize()))
    random = np.random.default_rng([seed, epoch, 1])
    micro_batches = len(_plan_window(dataset, blocks, config.max_tokens, random))
    share = len(dataset) / sum(map(len, blocks))
    return max(int(micro_batches * share / config.micro_batches_per_update), 1)


def group_by_length(*lengths: Indices, max_tokens: int) -> list[Indices]:
    """Cut rows, shortest first, into groups of at most `max_tokens` = rows x longest; `lengths` are of each side.

    Rows of equal lengths keep their order, so that shuffled input gives other groups each time. A row longer than
    `max_tokens` stands alone.
    """
    longest = np.maximum.reduce(lengths)
    order = np.lexsort((*lengths, longest))
    longest = longest[order]
    groups, start = [], 0
    while start < len(order):
        # The longest only grows from here, so no more than this many rows can fit ...
        at_most = max(max_tokens // int(longest[start]), 1)
        sizes = longest[start : start + at_most] * np.arange(
            1, min(at_most, len(order) - start) + 1
        )
        # ... and the padded size grows with every row, so those that fit come first.
        count = max(int(np.searchsorted(sizes, max_tokens, side="right")), 1)
        groups.append(order[start : start + count])
        start += count
    return groups


def _windows(num_rows: int, seed: int, epoch: int, window: WindowSize) -> Iterator[list[range]]:
    """Yield groups of blocks of consecutive rows in random order."""
    blocks = np.random.default_rng([seed, epoch, 0]).permutation(-(-num_rows // window.block_rows))
    for first in range(0, len(blocks), window.blocks):
        starts = blocks[first : first + window.blocks] * window.block_rows
        yield [range(s, min(s + window.block_rows, num_rows)) for s in starts.tolist()]


def _plan_window(
    dataset: Lengths, blocks: list[range], max_tokens: int, random: np.random.Generator
) -> list[MicroBatch]:
    rows = np.concatenate([np.arange(block.start, block.stop) for block in blocks])
    of_blocks = [dataset.lengths(block.start, block.stop) for block in blocks]
    lengths = [np.concatenate(side) for side in zip(*of_blocks, strict=True)]
    pools = np.array_split(random.permutation(len(rows)), min(_POOLS, len(rows)))
    groups = [
        pool[group]
        for pool in pools
        for group in group_by_length(*(side[pool] for side in lengths), max_tokens=max_tokens)
    ]
    order = random.permutation(len(groups)).tolist()
    return [MicroBatch(rows[groups[i]], lengths[-1][groups[i]]) for i in order]
