"""Real updates of a model, outside of any run: what its losses, gradients, weights and outputs do meanwhile."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from deepnet.errors import ConfigError
from deepnet.training.batches import Batch, Update
from deepnet.training.config import OptimizerConfig, ScheduleConfig
from deepnet.training.engine.base import Engine
from deepnet.training.engine.precision import Precision
from deepnet.training.engine.ranks import Ranks
from deepnet.training.optimization.optimizers import PolicyRow, set_learning_rate
from deepnet.training.optimization.schedules import learning_rate
from deepnet.training.session import AfterUpdate, Loss

STEPS = 200
"""Updates of a trial, unless another number is asked for."""
LEAST_STEPS = 20
"""Fewer would leave no tenths whose losses can be compared."""
READINGS = 8
"""Updates of a trial that the probes measure, spread evenly; the last is among them."""


class Watcher(Protocol):
    """What looks at a model around an update, as a `Recorder` does."""

    def before_update(self) -> None:
        """Look at the gradients, neither scaled nor clipped yet, and at what the step will change."""

    def after_update(self, step: int) -> dict[str, Any]:
        """Return the record of the update that was just done, the `step`-th."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the weights are stepped."""

    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    """Resolved, and as long as the trial."""
    clip_norm: float = 0.0
    policies: Sequence[PolicyRow] | None = None
    after_update: AfterUpdate | None = None


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What was seen of each update; it ends at the first whose loss or gradient is not finite."""

    steps: int
    """Updates that were asked for."""
    losses: list[float] = field(default_factory=list)
    """In nats per predicted token, or what the caller's loss is, before each update."""
    layer_shares: list[float] = field(default_factory=list)
    """At each update, the gradient norm of the layer with least of it over the largest of its stack."""
    readings: list[dict[str, Any]] = field(default_factory=list)
    """The probes' records of the measured updates; none of a model whose residual sites are not known."""

    @property
    def is_finite(self) -> bool:
        """Return whether every update was computed and finite."""
        return len(self.losses) == self.steps and all(map(math.isfinite, self.losses))


def refuse_too_few(steps: int) -> None:
    """Raise ConfigError for a trial that could show nothing."""
    if not isinstance(steps, int) or steps < LEAST_STEPS:
        raise ConfigError(
            f"a trial of {steps} updates shows nothing; expected at least {LEAST_STEPS}, as its tenths are compared"
        )


def take_steps(
    model: nn.Module,
    updates: Iterable[Update],
    *,
    steps: int,
    loss: Loss,
    settings: Settings,
    recorder: Watcher | None = None,
    at: Collection[int] | None = None,
) -> Trial:
    """Train `model` on the CPU for so many updates, which `updates` must have, and return what was seen.

    The recorder looks at the updates `at`, else at READINGS of them, spread evenly.
    """
    engine = _engine(model, settings)
    layers, parameters, trial = layer_rows(model), list(model.parameters()), Trial(steps=steps)
    measured = at or {math.ceil(steps * n / READINGS) for n in range(1, READINGS + 1)}
    model.train()
    for step, update in zip(range(1, steps + 1), updates, strict=False):
        rate = learning_rate(step - 1, peak=settings.optimizer.lr, config=settings.schedule)
        set_learning_rate(engine.optimizer, rate)
        trial.losses.append(_backward(engine, update, loss))
        gradients = engine.measure_gradients()
        norm = torch.linalg.vector_norm(gradients)
        if not math.isfinite(trial.losses[-1]) or not norm.isfinite():
            trial.losses[-1] = math.nan
            break
        used = [rows for rows in layers if any(parameters[row].grad is not None for row in rows)]
        trial.layer_shares.append(smallest_share(gradients, used))
        _step(engine, settings, step, norm, trial, recorder if step in measured else None)
    return trial


def _engine(model: nn.Module, settings: Settings) -> Engine:
    cpu = torch.device("cpu")
    return Engine(
        model.to(cpu),
        optimizer=settings.optimizer,
        policies=settings.policies,
        precision=Precision("fp32", "cpu"),
        ranks=Ranks(cpu),
    )


def _backward(engine: Engine, update: Update, loss: Loss) -> float:
    engine.drop_gradients()
    total = 0.0
    for batch in update.batches:
        of_batch = partial(_of, loss, batch)
        total += float(engine.add_gradients(of_batch, num_tokens=update.num_tokens, sends=True))
    return total / update.num_tokens


def _of(loss: Loss, batch: Batch, module: nn.Module) -> Tensor:
    found = loss(module, batch)
    if found.numel() != 1:
        raise ConfigError(
            f"the loss is a tensor of shape {tuple(found.shape)}; expected one number"
        )
    return found


def _step(
    engine: Engine,
    settings: Settings,
    step: int,
    norm: Tensor,
    trial: Trial,
    recorder: Watcher | None,
) -> None:
    """Let the weights take the update, between two looks of the recorder where there is one."""
    if recorder:
        recorder.before_update()
    engine.step(norm=norm, clip_norm=settings.clip_norm)
    if settings.after_update:
        settings.after_update(engine.model, step)
    if recorder:
        trial.readings.append(recorder.after_update(step))


def layer_rows(model: nn.Module) -> list[list[int]]:
    """Return the numbers of each layer's parameters among `model.parameters()`, of the last long list of layers.

    The first number in a parameter's name says which layer it is of, so that no anatomy is needed. The last list is
    the decoder's where there is one, as the guard's: an encoder that nothing reads does not stop a decoder. One less
    than half as long as the longest is no stack, but heads or a classifier.
    """
    found: dict[str, dict[str, list[int]]] = {}
    for row, (name, parameter) in enumerate(model.named_parameters()):
        parts = name.split(".")
        place = next((n for n, part in enumerate(parts) if part.isdigit()), None)
        if place is not None and parameter.requires_grad:
            layers = found.setdefault(".".join(parts[:place]), {})
            layers.setdefault(parts[place], []).append(row)
    lists = [list(layers.values()) for layers in found.values() if len(layers) > 1]
    longest = max(map(len, lists), default=0)
    return next((layers for layers in reversed(lists) if 2 * len(layers) >= longest), [])


def smallest_share(gradients: Tensor, layers: Sequence[Sequence[int]]) -> float:
    """Return the least gradient norm of a layer over the largest; 1 where there are no layers, or no gradient at all.

    `gradients` [P] are the norms by parameter.
    """
    norms = [float(torch.linalg.vector_norm(gradients[list(rows)])) for rows in layers]
    largest = max(norms, default=0.0)
    return min(norms) / largest if largest else 1.0
