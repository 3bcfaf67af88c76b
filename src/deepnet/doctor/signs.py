"""The signs by which the doctor knows trouble before a run: what a trial showed, each beside a limit that has a reason.

A sign's `excess` is how far it is beyond its limit, in a unit of its own: 0 at the limit, 1 one unit beyond. No sign
asks which scheme a model has.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, pvariance
from typing import Any, Literal

from deepnet.doctor.trial import STEPS, Trial
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
        signs.append(_regained(trial.losses, alone=frequency_loss is None))
        if frequency_loss is not None:
            signs.append(_above_frequencies(levels[-1], frequency_loss, steps=trial.steps))
    if trial.layer_shares:
        signs.append(_layer_gradient(trial.layer_shares))
    if trial.readings:
        signs += [_step_update(trial.readings), _token_mean_energy(trial.readings[-1])]
    return signs


def _not_finite(trial: Trial) -> Sign:
    lost = trial.steps - sum(map(math.isfinite, trial.losses))
    return Sign(
        name="not_finite",
        what="updates of the trial that were not made, as a loss or gradient was not finite",
        value=lost,
        limit=0,
        excess=FARTHEST if lost else -FARTHEST,
    )


def _above_frequencies(level: float, frequencies: float, *, steps: int) -> Sign:
    """Compare with a model that predicts every token by its frequency, which collapsed models come to.

    In a trial of fewer than STEPS updates a model may be there for want of time: it is no farther than at the limit.
    """
    sign = _sign(
        "above_frequencies",
        "nats of the last losses above those of token frequencies alone",
        level - frequencies,
        limit=-0.1,
        beyond=lambda value, limit: (value - limit) / 0.1,
    )
    return sign if steps >= STEPS else replace(sign, excess=min(sign.excess, 0.0))


def _regained(losses: Sequence[float], *, alone: bool) -> Sign:
    """Return the part of its fall that the loss has lost again; of where it began, if it never fell.

    A fall counts that is more than four standard errors of a tenth's mean: a model that has nothing left to learn, or
    has not begun to, wavers and does not lose what it learnt. Where no other sign looks at the loss, being `alone`, one
    that never fell is at the limit at least.
    """
    levels = _levels(losses)
    first, best, last = levels[0], min(levels), levels[-1]
    fell = first - best > 4 * _standard_error(losses)
    whole = first - best if fell else abs(first)
    sign = _sign(
        "loss_regained",
        "part of the loss's fall, or of its beginning where it never fell, that was lost again",
        (last - best) / whole if whole else 0.0,
        limit=0.5,
        beyond=lambda value, limit: (value - limit) / 0.25,
    )
    return replace(sign, excess=max(sign.excess, 0.0)) if alone and not fell else sign


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
    return [fmean(part) for part in _parts(losses)]


def _standard_error(losses: Sequence[float]) -> float:
    """Return that of the mean loss of one part, from how losses vary within the parts."""
    parts = _parts(losses)
    return math.sqrt(fmean(pvariance(part) for part in parts) / len(parts[0]))


def _parts(losses: Sequence[float]) -> list[Sequence[float]]:
    size = max(len(losses) // _WINDOWS, 1)
    return [losses[start : start + size] for start in range(0, len(losses) - size + 1, size)]


def _last_layer(rows: dict[str, list[float | None]]) -> float:
    """Return the reading of the last layer of the last stack; infinite where it was not finite."""
    stacks = [row for key, row in rows.items() if key in ("encoder", "decoder")]
    value = stacks[-1][-1]
    return math.inf if value is None else value
