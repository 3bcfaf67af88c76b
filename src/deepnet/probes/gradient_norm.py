"""Norm of the gradient of each weight, by layer and role: what has vanished or exploded, and where.

Euclidean, read from `.grad` when the context ends or when asked within it, so that accumulated gradients are read as
they are summed. Slices of fused parameters (q, k and v in one matrix) are told apart.

Source: Wang et al., DeepNet, arXiv 2203.00555, section 3, by layer.
"""

from typing import Self

import torch
from torch import Tensor, nn

from deepnet.probes.listening import norm
from deepnet.probes.place import Place, weight_places


class GradientNorm:
    """Norm of the gradient of each weight; matrices, biases, norms and scales each under their own role."""

    def __init__(self, model: nn.Module) -> None:
        """Raise AdaptError for a model whose residual sites are not known."""
        self._weights = weight_places(model)
        self._last: dict[Place, float] | None = None

    def __enter__(self) -> Self:
        """Start anew."""
        self._last = None
        return self

    def __exit__(self, *error: object) -> None:
        """Read the gradients that there are now."""
        self._last = self._read()

    def readings(self) -> dict[Place, float]:
        """Return the norms when the context ended, or as they are now; a weight without gradient has none."""
        return self._read() if self._last is None else self._last

    def _read(self) -> dict[Place, float]:
        found: dict[Place, Tensor] = {}
        for place, weights in self._weights.items():
            gradients = [weight.gradient() for weight in weights]
            norms = [norm(gradient) for gradient in gradients if gradient is not None]
            if norms:
                found[place] = torch.stack(norms).norm()
        return together(found)


def together(numbers: dict[Place, Tensor]) -> dict[Place, float]:
    """Return numbers of no dimension as Python's, from one device in one transfer."""
    if len({number.device for number in numbers.values()}) > 1:
        return {place: float(number) for place, number in numbers.items()}
    values = torch.stack([*numbers.values()]).tolist() if numbers else []
    return dict(zip(numbers, values, strict=True))
