"""The learning rate as a pure function of the update's number, counted from 0 for the first update."""

import math

from deepnet.errors import ConfigError
from deepnet.training.config import ScheduleConfig

_SHORTEST_WARMUP = 100


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


def learning_rate(step: int, *, peak: float, config: ScheduleConfig) -> float:
    """Return the learning rate of update `step` (0 is the first) of a resolved schedule.

    Warm-up, step < W: init + (peak - init) * step / W. After it, with p = (step - W) / (D - W) at most 1:
    inverse_sqrt peak * sqrt(W / step), linear peak + (min - peak) * p,
    cosine min + (peak - min) * (1 + cos(pi * p)) / 2, constant peak.

    Source: fairseq's inverse_sqrt schedule, whose first update also takes the warm-up's initial rate.
    """
    warmup = config.warmup_steps
    if step < warmup:
        return config.warmup_init_lr + (peak - config.warmup_init_lr) * step / warmup
    if config.name == "constant":
        return peak
    if config.name == "inverse_sqrt":
        return max(config.min_lr, peak * math.sqrt(max(warmup, 1) / max(step, 1)))
    progress = min(1.0, (step - warmup) / (config.decay_steps - warmup))
    if config.name == "linear":
        return peak + (config.min_lr - peak) * progress
    return config.min_lr + (peak - config.min_lr) * (1 + math.cos(math.pi * progress)) / 2
