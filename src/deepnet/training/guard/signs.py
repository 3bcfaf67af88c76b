"""The signs by which the guard knows trouble: what was measured, and the limit that it passed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from deepnet.probes.place import OUTPUT, Place
from deepnet.training.guard.history import REMEMBERED, History
from deepnet.training.guard.signals import Signals

Name = Literal[
    "not_finite",
    "norm_input",
    "loss",
    "gradient_norm",
    "query_key",
    "loss_level",
    "layer_gradient",
    "step_update",
]
_ROUNDING = 1e-6
"""Part of the other's gradient below which that of queries or keys is rounding."""
_ENDS = {"embedding": -1, "final": 1}


@dataclass(frozen=True, kw_only=True)
class Sign:
    """One number that was beyond its limit."""

    name: Name
    value: float
    limit: float | None
    """None where nothing but being finite was asked of it."""
    place: Place | None = None
    """Where it was measured, if not of the whole model."""
    measure: str
    """What the value is, in words."""
    limit_from: str = ""
    """What the limit is made of, in words."""


def not_finite(signals: Signals) -> Sign | None:
    """Return the loss, or else the gradient's norm, where it is not finite."""
    if signals.is_finite:
        return None
    loss_is_bad = signals.loss - signals.loss != 0
    value, what = (signals.loss, "loss") if loss_is_bad else (signals.gradient_norm, "gradient")
    return Sign(name="not_finite", value=value, limit=None, measure=f"the {what} is not finite")


def standing_out(
    signals: Signals, history: History, *, ratio: float, rise: float, spread: float
) -> Sign | None:
    """Return what leaves the range of the last updates, of which there must be some; None where nothing does.

    Of several the first in the order of causes: what enters a norm makes the loss, and the loss the gradient. A loss
    may rise above the highest by `rise` times `spread`, what enters a norm and the gradient to `ratio` times the
    highest, and the gradients of queries and keys may part by the square of that.
    """
    highest, number = history.highest(), len(history.normal())
    over = signals.norm_inputs > highest.norm_inputs * ratio
    if over.any():
        place = first_in_forward(_where(over, history))
        index = history.norm_inputs.index(place)
        return Sign(
            name="norm_input",
            value=float(signals.norm_inputs[index]),
            limit=float(highest.norm_inputs[index]) * ratio,
            place=place,
            measure=f"root mean square of what enters the norm of {place}",
            limit_from=f"{ratio:g} times the highest of the {number} updates before",
        )
    if signals.loss > highest.loss + rise * spread:
        return Sign(
            name="loss",
            value=signals.loss,
            limit=highest.loss + rise * spread,
            measure="loss",
            limit_from=f"{rise:g} times the spread {spread:.3g} of the {number} updates before above their highest",
        )
    if signals.gradient_norm > highest.gradient_norm * ratio:
        return Sign(
            name="gradient_norm",
            value=signals.gradient_norm,
            limit=highest.gradient_norm * ratio,
            measure="gradient norm",
            limit_from=f"{ratio:g} times the highest of the {number} updates before",
        )
    return _parting(signals, history, by=ratio**2)


def parted(signals: Signals, history: History) -> Tensor:
    """Return how many times the gradients of each attention's queries and keys have parted beyond their range, [A].

    Scores are a product of both: whichever matrix grows hands that much to the gradient of the other, though a softmax
    that it saturates leaves every other number where it was. 0 where one of them is rounding, or has no gradient.
    """
    now = history.attentions.ratios(signals.gradients)
    lowest, highest = history.ratio_range()
    known = (lowest > _ROUNDING) & (highest < 1 / _ROUNDING) & now.isfinite() & (now > 0)
    return torch.maximum(now / highest, lowest / now).where(known, now.new_tensor(0.0))


def _parting(signals: Signals, history: History, *, by: float) -> Sign | None:
    """Return the attention whose queries and keys have parted most, None where none have by so many times."""
    times = parted(signals, history)
    if not (times > by).any():
        return None
    index = int(times.argmax())
    now, (_, highest) = history.attentions.ratios(signals.gradients), history.ratio_range()
    grown = "k" if now[index] > highest[index] else "q"
    return Sign(
        name="query_key",
        value=float(times[index]),
        limit=by,
        place=history.attentions.places[index]._replace(role=grown),
        measure="times that the gradients of the attention's queries and keys have parted",
        limit_from=f"the square of guard.spike_ratio, beyond the range of the {len(history.normal())} updates before",
    )


def staying_high(latest: float, *, lowest: float, rise: float, spread: float) -> Sign | None:
    """Return the median of the last losses where it is `rise` times `spread` above its lowest, None where it is not."""
    limit = lowest + rise * spread
    if latest <= limit:
        return None
    return Sign(
        name="loss_level",
        value=latest,
        limit=limit,
        measure=f"median of {REMEMBERED} losses",
        limit_from=f"{rise:g} times the spread {spread:.3g} of the {REMEMBERED} updates in which it was lowest, "
        f"{lowest:.4g}, above that",
    )


def smallest_share(signals: Signals, history: History, *, limit: float) -> Sign | None:
    """Return the gradient of the layer that least of it reaches, over the largest of its stack; None without layers."""
    shares = history.layer_shares(signals)
    if not shares:
        return None
    layer = min(shares, key=lambda layer: shares[layer])
    return Sign(
        name="layer_gradient",
        value=shares[layer],
        limit=limit,
        place=layer,
        measure="gradient norm of the layer over the largest of its stack",
        limit_from="guard.vanishing_ratio",
    )


def replaced_output(step_update: float, *, limit: float, layers: Mapping[Place, float]) -> Sign:
    """Return the change of the output by one update, at the first layer of which it is true, or else at the output."""
    changed = [place for place, change in layers.items() if not change <= limit]
    return Sign(
        name="step_update",
        value=step_update,
        limit=limit,
        place=min(changed, key=forward_rank, default=OUTPUT),
        measure="change of the model's output by one update, in parts of what it was",
        limit_from="guard.largest_step_update",
    )


def first_in_forward(places: list[Place]) -> Place:
    """Return the place that runs first: the encoder's before the decoder's, a stack's entry before its layers."""
    return min(places, key=forward_rank)


def forward_rank(place: Place) -> tuple[int, int, int]:
    """Return what orders places as a forward pass goes through them; equal where their order is not known."""
    first = -1 if place.site == "embedding" else 2
    stack = {"encoder": 0, "decoder": 1}.get(place.stack, first)
    return stack, 0 if place.layer else _ENDS.get(place.site, 0), place.layer


def _where(over: Tensor, history: History) -> list[Place]:
    return [history.norm_inputs[index] for index in over.nonzero().flatten().tolist()]
