"""From planned rows to tensors: the micro-batches one process computes, update by update."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from deepnet.data.batching import BatchConfig, count_updates, group_by_length, plan_updates
from deepnet.data.dataset import Rows
from deepnet.data.objectives import Batch as Batch
from deepnet.data.objectives import Objective
from deepnet.errors import ConfigError


@dataclass(frozen=True)
class Update:
    """What one process computes of one optimiser update."""

    batches: tuple[Batch, ...]
    """This process's micro-batches."""
    num_tokens: int
    """Tokens to predict of the whole update, over all processes."""

    def pinned(self) -> "Update":
        """Return the update in pinned memory, which a GPU fetches from by itself; needs CUDA."""
        return replace(self, batches=tuple(batch.pinned() for batch in self.batches))


class UpdateLoader:
    """The updates of each epoch: fixed by seed and epoch, dealt to `world_size` processes."""

    def __init__(
        self,
        dataset: Rows,
        config: BatchConfig,
        *,
        objective: Objective,
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
        self.dataset, self.config, self.objective, self.seed = dataset, config, objective, seed
        self.rank, self.world_size = rank, world_size

    def updates(self, epoch: int, start: int = 0) -> Iterator[Update]:
        """Yield the updates of an epoch from the `start`-th on; those before are planned but not built."""
        rows = self.dataset.of_epoch(seed=self.seed, epoch=epoch)
        plan = plan_updates(rows, self.config, seed=self.seed, epoch=epoch)
        for micro_batches in islice(plan, start, None):
            if len(micro_batches) < self.world_size:
                raise ConfigError(
                    f"the whole corpus makes {len(micro_batches)} micro-batches, fewer than the "
                    f"{self.world_size} processes; lower 'batching.max_tokens'"
                )
            mine = micro_batches[self.rank :: self.world_size]
            yield Update(
                batches=tuple(
                    self.objective.batch(rows, batch.rows, epoch=epoch) for batch in mine
                ),
                num_tokens=sum(self.objective.num_tokens(batch.lengths) for batch in micro_batches),
            )

    def updates_per_epoch(self, epoch: int) -> int:
        """Return the number of updates of an epoch; an estimate beyond 100 million rows."""
        rows = self.dataset.of_epoch(seed=self.seed, epoch=epoch)
        return count_updates(rows, self.config, seed=self.seed, epoch=epoch)


def validation_batches(dataset: Rows, *, objective: Objective, max_tokens: int) -> list[Batch]:
    """Return the whole dataset, shortest sentences first, in batches of at most `max_tokens`; always the same."""
    groups = group_by_length(*dataset.lengths(), max_tokens=max_tokens)
    return [objective.batch(dataset, group, epoch=0) for group in groups]
