"""What the guard sees of each update before the weights take it: gradient norms and the inputs of the norms."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from deepnet.probes.place import Place, parameter_places


class Watched(NamedTuple):
    """A parameter: where it belongs, whether it is trained, and the path of the module that owns it."""

    place: Place
    trains: bool
    module: str = ""


@dataclass(frozen=True, kw_only=True)
class Signals:
    """One update, not applied yet; the same on every rank."""

    step: int
    """The number that the update would have, from 1."""
    lr: float
    loss: float
    """Smoothed loss in nats per target token."""
    gradient_norm: float
    """L2 norm of the whole gradient before clipping."""
    gradients: Tensor
    """Float32 [P] on the CPU: the L2 norm of each parameter's gradient, 0 where it has none."""
    norm_inputs: Tensor
    """Float32 [S] on the CPU: root mean square of what enters each site's norm."""

    @property
    def is_finite(self) -> bool:
        """Return whether the loss and the gradient are."""
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)


def watched_parameters(model: nn.Module) -> list[Watched]:
    """Return what is known of each parameter, in the order of `model.parameters()`."""
    places = zip(parameter_places(model), model.named_parameters(), strict=True)
    return [
        Watched(place, parameter.requires_grad, name.rpartition(".")[0])
        for place, (name, parameter) in places
    ]
