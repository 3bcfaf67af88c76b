"""The signs by which the doctor knows trouble before a run: what a trial showed, each beside a limit that has a reason.

A sign's `excess` is how far it is beyond its limit, in a unit of its own: 0 at the limit, 1 one unit beyond. No sign
asks which scheme a model has.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Literal

from deepnet.doctor.trial import Trial
from deepnet.training.guard.config import GuardConfig

Name = Literal[
    "not_finite",
    "above_frequencies",
    "loss_regained",
    "layer_gradient",
    "step_update",
    "token_mean_energy",
]
FARTHEST = 3.0
"""Units beyond a limit from which a sign says no more."""
_WINDOWS = 10
"""Parts of a trial whose mean losses are compared: a single loss says as much of its sentences as of the model."""


@dataclass(frozen=True, kw_only=True)
class Sign:
    """One number that was measured in a trial."""

    name: Name
    what: str
    """What the value is, in words."""
    value: float
    """May be infinite."""
    limit: float
    excess: float
    """Units beyond the limit, from -FARTHEST to FARTHEST."""


def read_signs(trial: Trial, *, frequency_loss: float | None = None) -> list[Sign]:
    """Return what a trial showed; `frequency_loss` is the loss, on its text, of who knows how often each token comes.

    A sign is left out where the trial cannot show it: probes need a model whose residual sites are known.
    """
    signs = [_not_finite(trial)]
    levels = _levels(trial.losses)
    if trial.is_finite:
        signs.append(_regained(levels))
        if frequency_loss is not None:
            signs.append(_above_frequencies(levels[-1], frequency_loss))
    if trial.layer_shares:
        signs.append(_layer_gradient(trial.layer_shares))
    if trial.readings:
        signs += [_step_update(trial.readings), _token_mean_energy(trial.readings[-1])]
    return signs


def _not_finite(trial: Trial) -> Sign:
    lost = trial.steps - sum(map(math.isfinite, trial.losses))
    return Sign(
        name="not_finite",
        what="updates of the trial that were lost as a loss or gradient was not finite",
        value=lost,
        limit=0,
        excess=FARTHEST if lost else -FARTHEST,
    )


def _above_frequencies(level: float, frequencies: float) -> Sign:
    """Compare with a model that predicts every token by its frequency, which collapsed models come to."""
    return _sign(
        "above_frequencies",
        "nats of the last losses above those of token frequencies alone",
        level - frequencies,
        limit=-0.1,
        beyond=lambda value, limit: (value - limit) / 0.1,
    )


def _regained(levels: Sequence[float]) -> Sign:
    """Return the part of its fall that the loss has lost again; infinite where it never fell."""
    first, best, last = levels[0], min(levels), levels[-1]
    value = (last - best) / (first - best) if first > best else math.inf
    return _sign(
        "loss_regained",
        "part of the loss's fall that was lost again by the end",
        value,
        limit=0.5,
        beyond=lambda value, limit: (value - limit) / 0.25,
    )


def _layer_gradient(shares: Sequence[float]) -> Sign:
    """Return what the guard calls a plateau: a layer that almost no gradient reaches, in half of the updates."""
    return _sign(
        "layer_gradient",
        "gradient norm of the layer with least of it over that with most, median over the updates",
        median(shares),
        limit=GuardConfig().vanishing_ratio,
        beyond=lambda value, limit: math.log10(limit / value) if value else math.inf,
    )


def _step_update(readings: Sequence[dict[str, Any]]) -> Sign:
    """Return what the guard calls an explosion at the first update: one that replaced the output."""
    changes = [_last_layer(reading["step_update"]) for reading in readings]
    return _sign(
        "step_update",
        "change of the last layer's output by one update, in parts of what it was, the largest",
        max(changes),
        limit=GuardConfig().largest_step_update,
        beyond=lambda value, limit: math.log2(value / limit) if value else -math.inf,
    )


def _token_mean_energy(reading: dict[str, Any]) -> Sign:
    """Return how alike the positions have become.

    Beyond 256 what tells them apart is less than the last of the 8 bits that a number in bf16 has.
    """
    return _sign(
        "token_mean_energy",
        "token mean of the last layer's output over what varies between tokens, at the end",
        _last_layer(reading["token_mean_energy"]),
        limit=256.0,
        beyond=lambda value, limit: math.log10(value / limit) if value else -math.inf,
    )


def _sign(
    name: Name, what: str, value: float, *, limit: float, beyond: Callable[[float, float], float]
) -> Sign:
    excess = FARTHEST if math.isinf(value) and value > 0 else beyond(value, limit)
    return Sign(
        name=name,
        what=what,
        value=value,
        limit=limit,
        excess=max(-FARTHEST, min(FARTHEST, excess)),
    )


def _levels(losses: Sequence[float]) -> list[float]:
    """Return the mean losses of consecutive parts of a trial."""
    size = max(len(losses) // _WINDOWS, 1)
    starts = range(0, len(losses) - size + 1, size)
    return [fmean(losses[start : start + size]) for start in starts]


def _last_layer(rows: dict[str, list[float | None]]) -> float:
    """Return the reading of the last layer of the last stack; infinite where it was not finite."""
    stacks = [row for key, row in rows.items() if key in ("encoder", "decoder")]
    value = stacks[-1][-1]
    return math.inf if value is None else value
