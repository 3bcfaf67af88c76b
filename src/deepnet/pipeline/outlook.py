"""What lies ahead of a recipe's run: what its updates hold, its largest micro-batches, and what ends it."""

from collections import Counter
from dataclasses import dataclass

from deepnet.data.loader import Batch, UpdateLoader
from deepnet.pipeline.recipe import Recipe
from deepnet.training.optimization.schedules import resolve_end

_SEEN_BATCHES = 200
"""Micro-batches of the first epoch after which no further update is looked at."""
_MEANS = ("sentences", "source_tokens", "target_tokens", "padded_tokens")


@dataclass(frozen=True, kw_only=True)
class UpdateReport:
    """What updates hold, on average over the first ones of an epoch."""

    sentences: float
    source_tokens: float
    target_tokens: float
    padded_tokens: float
    """Tokens that the model reads on both sides, padding included."""
    per_epoch: int


@dataclass(frozen=True, kw_only=True)
class EndReport:
    """What ends the run, besides training.patience."""

    limits: dict[str, float]
    """The limits that are set, by key; the first that is reached ends the run."""
    updates: int | None
    """Updates until the nearest of max_steps and max_epochs; None where there is only max_minutes."""
    anneals: bool
    """Whether the learning rate falls towards that end."""


def look_at_updates(loader: UpdateLoader) -> tuple[UpdateReport, list[Batch]]:
    """Return the means over the first updates of an epoch, and the largest of their micro-batches.

    The one with the most tokens, padding included, and the one with the most of them times its longest sentence, where
    that is another.
    """
    totals: Counter[str] = Counter()
    largest: list[Batch] = []
    for update in loader.updates(0):
        totals["updates"] += 1
        totals["batches"] += len(update.batches)
        for batch in update.batches:
            totals["sentences"] += len(batch.source)
            totals["source_tokens"] += batch.num_source_tokens
            totals["target_tokens"] += batch.num_tokens
            totals["padded_tokens"] += batch.num_padded_tokens
            seen = [*largest, batch]
            largest = [max(seen, key=_padded_tokens), max(seen, key=_by_length)]
        if totals["batches"] >= _SEEN_BATCHES:
            break
    assert largest, "prepared data has at least one pair"
    means = {name: round(totals[name] / totals["updates"], 1) for name in _MEANS}
    report = UpdateReport(**means, per_epoch=loader.updates_per_epoch(0))
    return report, largest[: 1 + (largest[0] is not largest[1])]


def find_end(recipe: Recipe, *, updates_per_epoch: int) -> EndReport:
    """Return what ends a recipe's run; raises ConfigError where its schedule ends inside the warm-up."""
    training, schedule = recipe.training, recipe.schedule
    resolve_end(schedule, training, updates_per_epoch=updates_per_epoch)
    limits = {name: getattr(training, name) for name in ("max_steps", "max_epochs", "max_minutes")}
    counts = (training.max_steps, training.max_epochs * updates_per_epoch)
    return EndReport(
        limits={f"training.{name}": limit for name, limit in limits.items() if limit},
        updates=min((count for count in counts if count), default=None),
        anneals=schedule.name in ("linear", "cosine") and not schedule.decay_steps,
    )


def _padded_tokens(batch: Batch) -> int:
    return batch.num_padded_tokens


def _by_length(batch: Batch) -> int:
    return batch.num_padded_tokens * max(batch.source.shape[1], batch.target_out.shape[1])
