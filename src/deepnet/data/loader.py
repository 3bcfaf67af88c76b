"""From planned pairs to tensors: the micro-batches one process computes, update by update."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from deepnet.data.batching import BatchConfig, count_updates, group_by_length, plan_updates
from deepnet.data.dataset import Ids, PairDataset
from deepnet.errors import ConfigError


@dataclass(frozen=True)
class Batch:
    """One micro-batch; B sentences, S and T the longest source and target with eos."""

    source: Tensor
    """[B, S] int64, pad where padding."""
    source_keep: Tensor | None
    """[B, S] bool, True = may be attended; None when nothing is padding."""
    target_in: Tensor
    """[B, T] int64, starts with pad, then the target without its last id."""
    target_out: Tensor
    """[B, T] int64, ends with eos, pad where padding."""
    num_tokens: int
    """Target tokens that are not padding."""
    num_source_tokens: int
    """Source tokens that are not padding."""

    def to(self, device: torch.device | str) -> "Batch":
        """Return the batch with its tensors on `device`."""
        keep = None if self.source_keep is None else self.source_keep.to(device)
        return Batch(
            source=self.source.to(device),
            source_keep=keep,
            target_in=self.target_in.to(device),
            target_out=self.target_out.to(device),
            num_tokens=self.num_tokens,
            num_source_tokens=self.num_source_tokens,
        )


@dataclass(frozen=True)
class Update:
    """What one process computes of one optimiser update."""

    batches: tuple[Batch, ...]
    """This process's micro-batches."""
    num_tokens: int
    """Target tokens of the whole update, over all processes."""


class UpdateLoader:
    """The updates of each epoch: fixed by seed and epoch, dealt to `world_size` processes."""

    def __init__(
        self,
        dataset: PairDataset,
        config: BatchConfig,
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
    ):
        """Raise ConfigError when a sentence exceeds the token budget, or an update cannot occupy every process."""
        if dataset.header.longest > config.max_tokens:
            raise ConfigError(
                f"'batching.max_tokens' is {config.max_tokens:,}, but the longest sentence has "
                f"{dataset.header.longest:,} tokens; raise it, or lower data.max_sentence_tokens"
            )
        if config.micro_batches_per_update < world_size:
            raise ConfigError(
                f"'batching.micro_batches_per_update' is {config.micro_batches_per_update}, fewer than "
                f"the {world_size} processes; each needs at least one"
            )
        self.dataset, self.config, self.seed = dataset, config, seed
        self.rank, self.world_size = rank, world_size

    def updates(self, epoch: int, start: int = 0) -> Iterator[Update]:
        """Yield the updates of an epoch from the `start`-th on; those before are planned but not built."""
        plan = plan_updates(self.dataset, self.config, seed=self.seed, epoch=epoch)
        for micro_batches in islice(plan, start, None):
            if len(micro_batches) < self.world_size:
                raise ConfigError(
                    f"the whole corpus makes {len(micro_batches)} micro-batches, fewer than the "
                    f"{self.world_size} processes; lower 'batching.max_tokens'"
                )
            mine = micro_batches[self.rank :: self.world_size]
            yield Update(
                batches=tuple(make_batch(self.dataset, batch.pairs.tolist()) for batch in mine),
                num_tokens=sum(batch.num_tokens for batch in micro_batches),
            )

    def updates_per_epoch(self, epoch: int) -> int:
        """Return the number of updates of an epoch; an estimate beyond 100 million pairs."""
        return count_updates(self.dataset, self.config, seed=self.seed, epoch=epoch)


def make_batch(dataset: PairDataset, pairs: Sequence[int]) -> Batch:
    """Return the tensors of the given pairs."""
    both = [dataset[i] for i in pairs]
    source = _padded([source for source, _ in both], dataset.source_pad)
    target = _padded([target for _, target in both], dataset.target_pad)
    keep = source != dataset.source_pad
    first = np.full((len(both), 1), dataset.target_pad)
    target_in = np.concatenate([first, target[:, :-1]], axis=1)
    return Batch(
        source=torch.from_numpy(source),
        source_keep=None if keep.all() else torch.from_numpy(keep),
        target_in=torch.from_numpy(target_in),
        target_out=torch.from_numpy(target),
        num_tokens=sum(len(target) for _, target in both),
        num_source_tokens=int(keep.sum()),
    )


def validation_batches(dataset: PairDataset, max_tokens: int) -> list[Batch]:
    """Return the whole dataset, shortest sentences first, in batches of at most `max_tokens`; always the same."""
    source, target = dataset.lengths()
    groups = group_by_length(source, target, max_tokens=max_tokens)
    return [make_batch(dataset, group.tolist()) for group in groups]


def _padded(sentences: list[Ids], pad: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return [B, longest] with `pad` after each sentence."""
    padded = np.full((len(sentences), max(map(len, sentences))), pad, dtype=np.int64)
    for row, sentence in zip(padded, sentences, strict=True):
        row[: len(sentence)] = sentence
    return padded
