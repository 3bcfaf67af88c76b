"""How large the stream, the gradients and one update's change of the output are, around some updates of a model."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from deepnet.anatomy.locate import locate
from deepnet.doctor.beside import layer_norms
from deepnet.probes.gradient_norm import GradientNorm
from deepnet.probes.model_update import LayerOutputs, distance, evaluating
from deepnet.probes.place import Place, by_layer

STREAM, GRADIENT = "stream of the", "gradient of the"
"""What the name of a stack follows."""
CHANGE = "change of the output by one update"
_NOT_MATRICES = ("norm", "bias")


class Sizes:
    """Looks at a model before and after an update, on the same sentences each time, without dropout."""

    def __init__(self, model: nn.Module, forward: Callable[[nn.Module], object]) -> None:
        """Raise AdaptError for a model whose residual sites are not known; `forward` runs it on the sentences."""
        self._model, self._forward = model, forward
        self._layers: dict[str, int] = {s.name: s.num_layers for s in locate(model).stacks}
        self._outputs, self._gradient_norm = LayerOutputs(model), GradientNorm(model)
        self._gradients: dict[str, list[float]] = {}
        self._before: dict[Place, Tensor] = {}

    def before_update(self) -> None:
        """Read the gradients, and the output of every layer."""
        found = self._gradient_norm.readings()
        rows = by_layer(
            {place: norm for place, norm in found.items() if place.role not in _NOT_MATRICES},
            num_layers=self._layers,
        )
        self._gradients = {stack: layer_norms(rows, stack) for stack in self._layers}
        self._before = self._look()

    def after_update(self, step: int) -> dict[str, Any]:
        """Return "step" and, by what they are of, the sizes of every layer; of the change there is one.

        Root mean squares of what the layers of a stack return, norms of the gradients of their matrices, and how far
        the last layer's output has moved, in parts of what it was.
        """
        now = self._look()
        streams = {
            f"{STREAM} {stack}": [_rms(now[Place(stack, n + 1)]) for n in range(num_layers)]
            for stack, num_layers in self._layers.items()
        }
        gradients = {f"{GRADIENT} {stack}": x for stack, x in self._gradients.items()}
        last = Place(*list(self._layers.items())[-1])
        moved = distance([now[last]], [self._before[last]]).relative
        return {"step": step, **streams, **gradients, CHANGE: [moved]}

    def _look(self) -> dict[Place, Tensor]:
        with evaluating(self._model), torch.no_grad(), self._outputs as kept:
            self._forward(self._model)
        return kept.outputs


def _rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())
