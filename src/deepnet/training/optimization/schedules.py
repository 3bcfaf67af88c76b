"""The learning rate as a pure function of the update's number, counted from 0, and of how far the run is."""

import math
from dataclasses import dataclass

from deepnet.errors import ConfigError
from deepnet.training.config import ScheduleConfig, TrainingConfig

_SHORTEST_WARMUP = 100
_LATEST = 0.5
"""Part of a run's epochs or minutes after which its rate falls even if the warm-up is not over."""


@dataclass(frozen=True)
class Moment:
    """How far a run is."""

    epochs: float
    """Passes over the data, with the part of the present one."""
    seconds: float
    """Wall clock of all sessions together."""


@dataclass(frozen=True)
class Annealing:
    """The limits of a run, besides decay_steps, towards which its learning rate falls; 0 for none."""

    max_epochs: int = 0
    max_minutes: float = 0.0

    @property
    def keys(self) -> list[str]:
        """Return the keys of the limits, as in a recipe."""
        limits = {"max_epochs": self.max_epochs, "max_minutes": self.max_minutes}
        return [f"training.{name}" for name, limit in limits.items() if limit]

    def progress(self, now: Moment, *, warmed_up: Moment | None) -> float:
        """Return how much of the fall is done, from 0 to 1, by the limit that is nearest.

        It begins where the warm-up was over, or at half of the limit where it is not over by then.
        """
        begin = warmed_up or Moment(math.inf, math.inf)
        return max(
            _fall(now.epochs, begin=begin.epochs, end=self.max_epochs),
            _fall(now.seconds, begin=begin.seconds, end=self.max_minutes * 60),
        )


def _fall(now: float, *, begin: float, end: float) -> float:
    if not end:
        return 0.0
    begin = min(begin, end * _LATEST)
    return min(1.0, max(0.0, (now - begin) / (end - begin)))


def resolve_end(
    config: ScheduleConfig, training: TrainingConfig, *, updates_per_epoch: int
) -> tuple[ScheduleConfig, Annealing]:
    """Return the schedule with its decay_steps filled in from max_steps, and the other limits that it falls towards.

    Raises ConfigError when max_steps or max_epochs end inside the warm-up; of max_minutes nobody knows before.
    """
    if config.decay_steps or config.name not in ("linear", "cosine"):
        return config, Annealing()
    updates = training.max_epochs * updates_per_epoch
    if 0 < updates <= config.warmup_steps:
        raise ConfigError(
            f"schedule.name = '{config.name}' falls towards training.max_epochs = {training.max_epochs}, but these are "
            f"{updates:,} updates, and schedule.warmup_steps is {config.warmup_steps:,}; lower it, or train for longer"
        )
    if training.max_steps:
        config = resolve_schedule(config, max_steps=training.max_steps)
    return config, Annealing(training.max_epochs, training.max_minutes)


def resolve_schedule(config: ScheduleConfig, *, max_steps: int) -> ScheduleConfig:
    """Return the schedule with its decay_steps filled in, so that it no longer depends on how long a run is.

    Raises ConfigError when a decaying curve has no end, or one inside the warm-up.
    """
    if config.decay_steps or config.name not in ("linear", "cosine"):
        return config
    if max_steps <= config.warmup_steps:
        raise ConfigError(
            f"schedule.name = '{config.name}' needs an end: set schedule.decay_steps, or training.max_steps "
            f"(now {max_steps}), above schedule.warmup_steps = {config.warmup_steps}"
        )
    return config.model_copy(update={"decay_steps": max_steps})


def lengthened_warmup(config: ScheduleConfig, factor: float) -> ScheduleConfig:
    """Return a resolved schedule whose warm-up is so many times as long, from 100 updates where it is shorter.

    It starts at 1e-7 or less. A curve that ends keeps its end, and at least one update after the warm-up.
    """
    if factor == 1.0:
        return config
    steps = round(max(config.warmup_steps, _SHORTEST_WARMUP) * factor)
    if config.decay_steps:
        steps = min(steps, config.decay_steps - 1)
    start = min(config.warmup_init_lr, ScheduleConfig().warmup_init_lr)
    return config.model_copy(update={"warmup_steps": steps, "warmup_init_lr": start})


def learning_rate(
    step: int, *, peak: float, config: ScheduleConfig, annealed: float = 0.0
) -> float:
    """Return the learning rate of update `step` (0 is the first) of a resolved schedule.

    Warm-up, step < W: init + (peak - init) * step / W. After it, with p = (step - W) / (D - W) at most 1:
    inverse_sqrt peak * sqrt(W / step), linear peak + (min - peak) * p,
    cosine min + (peak - min) * (1 + cos(pi * p)) / 2, constant peak. `annealed`, from 0 to 1, takes the place of p
    where it is larger; a warm-up that is not over by then stays below the curve.

    Source: fairseq's inverse_sqrt schedule, whose first update also takes the warm-up's initial rate.
    """
    warmup = config.warmup_steps
    if step < warmup:
        line = config.warmup_init_lr + (peak - config.warmup_init_lr) * step / warmup
        return min(line, _fallen(annealed, peak=peak, config=config)) if annealed else line
    if config.name == "constant":
        return peak
    if config.name == "inverse_sqrt":
        return max(config.min_lr, peak * math.sqrt(max(warmup, 1) / max(step, 1)))
    decay = config.decay_steps
    by_steps = (step - warmup) / (decay - warmup) if decay else 0.0
    return _fallen(min(1.0, max(by_steps, annealed)), peak=peak, config=config)


def _fallen(progress: float, *, peak: float, config: ScheduleConfig) -> float:
    if config.name == "linear":
        return peak + (config.min_lr - peak) * progress
    return config.min_lr + (peak - config.min_lr) * (1 + math.cos(math.pi * progress)) / 2
