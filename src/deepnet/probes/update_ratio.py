"""How far a step of the optimiser moves each weight, relative to the weight: ||w_after - w_before|| / ||w_before||.

About 1e-3 is usual; much less learns nothing, much more forgets. The context holds a copy of the matrices.

Source: Karpathy, CS231n notes, "Ratio of weights:updates".
"""

from typing import Self

import torch
from torch import Tensor, nn

from deepnet.anatomy.base import Weight
from deepnet.probes.gradient_norm import together
from deepnet.probes.listening import norm
from deepnet.probes.place import Place, weight_places

_MATRICES = {"q", "k", "v", "out", "fc1", "gate", "fc2", "embedding", "position", "vocabulary"}


class UpdateRatio:
    """Relative change of each matrix between the beginning and the end of the context: `with ...: optimizer.step()`."""

    def __init__(self, model: nn.Module) -> None:
        """Raise AdaptError for a model whose residual sites are not known."""
        places = weight_places(model)
        self._weights = {
            p: weights for p, weights in places.items() if weights[0].role in _MATRICES
        }
        self._before: dict[Place, list[Tensor]] = {}
        self._readings: dict[Place, float] = {}

    def __enter__(self) -> Self:
        """Copy the matrices."""
        self._readings = {}
        self._before = {
            place: [weight.matrix().clone() for weight in weights]
            for place, weights in self._weights.items()
        }
        return self

    def __exit__(self, *error: object) -> None:
        """Compare, and let the copy go."""
        ratios = {
            place: _ratio(self._weights[place], before) for place, before in self._before.items()
        }
        self._readings = together(ratios)
        self._before = {}

    def readings(self) -> dict[Place, float]:
        """Return the ratios of the context that ended last; none within it."""
        return self._readings


def _ratio(weights: list[Weight], before: list[Tensor]) -> Tensor:
    changes = [norm(w.matrix() - b) for w, b in zip(weights, before, strict=True)]
    starts = [norm(b) for b in before]
    ratio: Tensor = torch.stack(changes).norm() / torch.stack(starts).norm()
    return ratio
