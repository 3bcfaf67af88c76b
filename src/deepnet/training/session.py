"""What a session of the loop has: the same from its first update to its last, and checked before the first."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from deepnet.errors import ConfigError
from deepnet.record import RunFolder
from deepnet.training.batches import Updates
from deepnet.training.checkpoint.folder import Trained, latest_checkpoint
from deepnet.training.checkpoint.resume import MOVING_AVERAGE
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from deepnet.training.engine.memory import memory_shortage_explained
from deepnet.training.engine.ranks import Ranks
from deepnet.training.optimization.schedules import Annealing
from deepnet.training.probing import Probes
from deepnet.training.stopwatch import Stopwatch
from deepnet.training.update import Updater

Validate = Callable[[nn.Module, int], Mapping[str, float]]
"""(model in evaluation mode, updates done) -> figures, among them the one that training.keep_best names."""
Prepare = Callable[[nn.Module], None]
"""(model on its device) -> None, called on every rank before a run's first update; rank 0's result counts."""
Sink = Callable[[Mapping[str, Any]], None]
"""Takes each record of metrics.jsonl as it is written, such as the display."""


@dataclass(frozen=True)
class Session:
    """What stays the same during one call of the loop."""

    trained: Trained
    updater: Updater
    loader: Updates
    validate: Validate | None
    training: TrainingConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    annealing: Annealing
    watch: Stopwatch
    ranks: Ranks
    run: RunFolder
    probes: Probes
    sinks: Sequence[Sink]
    on_incident: Sequence[Sink]
    settings: Mapping[str, Any]
    updates_per_epoch: int


def refuse_what_has_no_effect(
    training: TrainingConfig, *, validate: Validate | None, blocks: Sequence[nn.Module]
) -> None:
    """Raise ConfigError for a setting that needs what the caller has not given."""
    needed_for = {
        "recompute": (training.recompute, bool(blocks), "blocks to recompute"),
        "validate_every": (training.validate_every, bool(validate), "function `validate`"),
        "keep_best": (training.keep_best != "loss", bool(validate), "function `validate`"),
    }
    for key, (is_set, is_there, what) in needed_for.items():
        if is_set and not is_there:
            raise ConfigError(f"training.{key} is set, but the caller gives no {what}")


def earlier_checkpoint(folder: Path, *, resume: bool) -> Path | None:
    """Return the checkpoint to go on from; raises ConfigError where there is one and nothing is to be resumed."""
    checkpoint = latest_checkpoint(folder)
    if checkpoint and not resume:
        raise ConfigError(f"{folder} holds checkpoints of another run; resume it or choose another")
    return checkpoint


def make_ready(model: nn.Module, *, ranks: Ranks, prepare: Prepare | None) -> None:
    """Put the model on its device, prepare it, and make it the same on all ranks."""
    model.to(ranks.device)
    if prepare:
        with memory_shortage_explained("while the model was prepared, before step 1"):
            prepare(model)
    ranks.make_equal(model)
    model.train()


def averaging_settings(training: TrainingConfig, *, warms_up: bool) -> dict[str, Any]:
    """Return what a resumed run must know of the moving average besides its decay."""
    return {MOVING_AVERAGE: {"warms_up": True}} if training.ema_decay and warms_up else {}


def resolved_sections(
    training: TrainingConfig,
    optimizer: OptimizerConfig,
    schedule: ScheduleConfig,
    annealing: Annealing,
) -> dict[str, Any]:
    """Return the sections that a resumed run is compared with, as they stand in a checkpoint."""
    sections = {"training": training, "optimizer": optimizer, "schedule": schedule}
    dumps = {name: section.model_dump(mode="json") for name, section in sections.items()}
    return dumps | ({"annealing": {"towards": annealing.keys}} if annealing.keys else {})
