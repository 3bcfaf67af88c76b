"""Where trouble began, and what is said of it."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from deepnet.probes.place import Place
from deepnet.training.history import History
from deepnet.training.signals import Signals

Kind = Literal["nan", "spike", "explosion", "plateau"]


def find_place(kind: Kind, signals: Signals, history: History) -> Place | None:
    """Return the place that went first, None where nothing tells.

    What is not finite in the forward pass is found at the first norm it enters, in the gradient alone at the last
    parameter, where the backward pass begins. A spike or explosion is placed where the gradient has grown most over its
    median of the last updates, a plateau where least of it arrives.
    """
    if kind == "plateau":
        shares = history.layer_shares(signals)
        return min(shares, key=lambda layer: shares[layer])
    if not signals.is_finite:
        return _first_not_finite(signals, history)
    return _most_grown(signals, history)


def describe(kind: Kind, signals: Signals, history: History) -> str:
    """Return one sentence on what was measured."""
    if kind == "plateau":
        shares = history.layer_shares(signals)
        layer = min(shares, key=lambda layer: shares[layer])
        return (
            f"the gradient norm of layer {layer} is {shares[layer]:.1g} of the largest in its stack: "
            "the loss will level off, as the layers below learn nothing"
        )
    measured = f"loss {signals.loss:.4g}, gradient norm {signals.gradient_norm:.4g}"
    if kind == "nan":
        return f"{measured}: not finite"
    rows = history.normal()
    if not rows:
        return measured
    highest = history.highest()
    return (
        f"{measured}; over the {len(rows)} updates before, the loss was at most {highest.loss:.4g} and "
        f"the gradient norm {highest.gradient_norm:.4g}"
    )


def _first_not_finite(signals: Signals, history: History) -> Place | None:
    bad_inputs = _indices(~signals.norm_inputs.isfinite())
    if bad_inputs:
        return history.norm_inputs[bad_inputs[0]]
    bad_gradients = _indices(~signals.gradients.isfinite())
    return history.parameters[bad_gradients[-1]].place if bad_gradients else None


def _most_grown(signals: Signals, history: History) -> Place | None:
    rows = history.normal()
    if not rows:
        return None
    usual = torch.stack([row.gradients for row in rows]).median(0).values
    growth = torch.where(usual > 0, signals.gradients / usual, 0.0)
    return history.parameters[int(growth.argmax())].place


def _indices(mask: Tensor) -> Sequence[int]:
    indices: list[int] = mask.nonzero().flatten().tolist()
    return indices
