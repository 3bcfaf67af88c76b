"""What a run does, once everything is settled that its sections leave open."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from deepnet.training.checkpoint.resume import (
    MOVING_AVERAGE,
    kept_annealing,
    kept_precision,
    kept_warmup,
)
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from deepnet.training.engine.compile import resolve_compile
from deepnet.training.engine.precision import Precision, resolve_precision
from deepnet.training.optimization.schedules import Annealing, resolve_end


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The sections of a run, and what follows from them."""

    training: TrainingConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    annealing: Annealing
    """What the learning rate falls towards besides schedule.decay_steps."""
    precision: Precision
    compiles: bool
    """Whether blocks run compiled."""
    average_warms_up: bool
    updates_per_epoch: int

    def settings(self) -> dict[str, Any]:
        """Return what a resumed run is compared with, as it stands in a checkpoint."""
        sections = {
            "training": self.training,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
        }
        settings = {name: section.model_dump(mode="json") for name, section in sections.items()}
        if self.annealing.keys:
            settings["annealing"] = {"towards": self.annealing.keys}
        if self.training.ema_decay and self.average_warms_up:
            settings[MOVING_AVERAGE] = {"warms_up": True}
        return settings


def settle(
    training: TrainingConfig,
    optimizer: OptimizerConfig,
    schedule: ScheduleConfig,
    *,
    precision: Precision | None,
    device: torch.device,
    updates_per_epoch: int,
    has_blocks: bool = False,
    saved: Mapping[str, Any],
) -> Plan:
    """Return the plan of a run; one that is resumed keeps what it found out when it began, from its `saved` settings.

    Raises ConfigError for a schedule that ends inside its warm-up, or a precision or compiler that the device lacks.
    """
    schedule, annealing = resolve_end(schedule, training, updates_per_epoch=updates_per_epoch)
    if precision is None:
        precision = resolve_precision(kept_precision(training.precision, saved), device=device)
    return Plan(
        training=training.model_copy(update={"precision": precision.name}),
        optimizer=optimizer,
        schedule=schedule,
        annealing=kept_annealing(annealing, schedule, saved) if saved else annealing,
        precision=precision,
        compiles=resolve_compile(training.compile, device=device, has_blocks=has_blocks),
        average_warms_up=not saved or kept_warmup(saved),
        updates_per_epoch=updates_per_epoch,
    )
