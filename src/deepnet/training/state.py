"""Where a run is: everything the loop remembers from one update to the next besides tensors."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from deepnet.training.batches import Position
from deepnet.training.config import TrainingConfig
from deepnet.training.guard.judge import Verdict
from deepnet.training.guard.signals import Signals
from deepnet.training.optimization.schedules import Moment


@dataclass(frozen=True)
class Evidence:
    """What was measured when the guard had found something."""

    again: Mapping[str, Any]
    """What the update showed, by module, when it was computed again; empty where it was not."""
    probes: Mapping[str, Any]
    """What the probes read on their own batch; empty where there are none."""


@dataclass(frozen=True)
class Outcome:
    """What one update was, the same on every rank."""

    interrupted: bool
    """Whether a signal has reached any rank."""
    seconds: float
    """The writer's clock."""
    lr: float
    loss: float = 0.0
    """Smoothed loss in nats, summed over the target tokens of all ranks; 0 where it is read later."""
    gradient_norm: float = 0.0
    """L2 norm before clipping; not finite where fp16's scaler skipped the update, 0 where it is read later."""
    signals: Signals | None = None
    """What the guard saw, if it looks."""
    verdict: Verdict | None = None
    """What the guard found wrong, if anything."""
    evidence: Evidence | None = None
    """What was then measured."""

    @property
    def counts(self) -> bool:
        """Whether it is a step of the run; one that fp16's scaler skipped is, one that the guard skipped is not."""
        return self.verdict is None or self.verdict.applies

    @property
    def applied(self) -> bool:
        """Whether the weights took it."""
        return self.counts and math.isfinite(self.gradient_norm)


class Unread:
    """What updates left on the device because nobody waited for it: their losses and gradient norms."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None

    def add(self, loss: Tensor, gradient_norm: Tensor) -> None:
        """Add one update: the loss summed over this rank's target tokens, and the norm of the whole gradient."""
        own = torch.stack([loss, gradient_norm.double()])
        self._sums = own if self._sums is None else self._sums + own

    def take(self, total: Callable[[Tensor], Tensor]) -> tuple[float, float]:
        """Return the sums of both since the last call, of the loss that of all ranks, over which `total` sums."""
        own = torch.zeros(2, dtype=torch.float64) if self._sums is None else self._sums.cpu()
        self._sums = None
        return total(own[:1]).item(), own[1].item()


@dataclass
class Window:
    """Sums over the updates since the last record."""

    loss: float = 0.0
    """Smoothed loss in nats, summed over target tokens."""
    num_tokens: int = 0
    num_updates: int = 0
    num_skipped: int = 0
    """Updates that the weights did not take: fp16's scaler or the guard skipped them."""
    gradient_norm: float = 0.0
    """L2 norms before clipping, summed over the updates that were not skipped."""
    seconds: float = 0.0
    """Time of the updates alone, without validation and saving."""

    def record(self) -> dict[str, float | int | None]:
        """Return the means: loss per target token, gradient norm per applied update, target tokens per second."""
        applied = self.num_updates - self.num_skipped
        return {
            "loss": self.loss / self.num_tokens if self.num_tokens else None,
            "gradient_norm": self.gradient_norm / applied if applied else None,
            "skipped_updates": self.num_skipped,
            "tokens_per_second": self.num_tokens / self.seconds if self.seconds else None,
        }


@dataclass
class TrainingState:
    """The counters of a run; saved in each checkpoint, so that a resumed run goes on as if nothing had happened."""

    step: int = 0
    """Updates done."""
    epoch: int = 0
    """Passes over the data that are complete."""
    update: int = 0
    """Updates done of the current pass: the data cursor."""
    num_tokens: int = 0
    """Target tokens seen."""
    seconds: float = 0.0
    """Wall clock of all sessions together when the last update began."""
    seconds_since: float = 0.0
    """Wall clock from then until this was saved."""
    warmed_up: Moment | None = None
    """Where the run was when its warm-up was over; None before."""
    best: float | None = None
    """Best validation figure so far, of the metric that keep_best names."""
    best_step: int | None = None
    num_worse: int = 0
    """Validations since the best one."""
    lr: float = 0.0
    """Learning rate of the last update."""
    is_due: bool = False
    """Whether what is due after the last update has not been done: recording, validating, saving."""
    window: Window = field(default_factory=Window)

    def count(self, position: Position, outcome: Outcome, *, seconds: float) -> None:
        """Count an update that took so many seconds."""
        window, num_tokens = self.window, position.update.num_tokens
        self.epoch, self.update = position.following
        self.seconds = outcome.seconds
        self.lr = outcome.lr
        self.is_due = outcome.counts
        window.num_updates += 1
        window.seconds += seconds
        if outcome.counts:
            self.step += 1
            self.num_tokens += num_tokens
            window.loss += outcome.loss
            window.num_tokens += num_tokens
        if outcome.applied:
            window.gradient_norm += outcome.gradient_norm
        else:
            window.num_skipped += 1

    def take_window(self) -> dict[str, float | int | None]:
        """Return the record of the window and open a new one."""
        record, self.window = self.window.record(), Window()
        return record

    def judge(self, value: float, *, higher_is_better: bool) -> bool:
        """Count a validation figure and return whether it is the best so far."""
        if self.best is None or (value > self.best if higher_is_better else value < self.best):
            self.best, self.best_step, self.num_worse = value, self.step, 0
            return True
        self.num_worse += 1
        return False

    def forget_best(self) -> None:
        """Judge the next validation figure as if it were the first."""
        self.best, self.best_step, self.num_worse = None, None, 0

    def finished(self, config: TrainingConfig) -> str | None:
        """Return the name of the limit that has been reached, or None while training goes on."""
        reached = {
            "max_steps": 0 < config.max_steps <= self.step,
            "max_epochs": 0 < config.max_epochs <= self.epoch,
            "max_minutes": 0 < config.max_minutes <= self.seconds / 60,
            "patience": 0 < config.patience <= self.num_worse,
        }
        return next((name for name, is_reached in reached.items() if is_reached), None)

    def moment(self, *, seconds: float, updates_per_epoch: int) -> Moment:
        """Return where the run is when the coming update begins at `seconds`."""
        # epochs differ a little in length, and one that is longer must not seem to be over
        part = min(1.0, self.update / updates_per_epoch)
        return Moment(self.epoch + part, seconds)

    def progress(self, config: TrainingConfig, *, updates_per_epoch: int) -> float:
        """Return how much of the run is done, from 0 to 1, by the limit that is nearest."""
        now = self.moment(seconds=self.seconds, updates_per_epoch=updates_per_epoch)
        parts = [0.0]
        if config.max_steps:
            parts.append(self.step / config.max_steps)
        if config.max_epochs:
            parts.append(now.epochs / config.max_epochs)
        if config.max_minutes:
            parts.append(now.seconds / 60 / config.max_minutes)
        return min(1.0, max(parts))
