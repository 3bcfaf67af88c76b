"""How far a model's outputs have moved since a chosen moment: ||F(x, theta_t) - F(x, theta_0)|| on a fixed batch.

Source: Wang et al., DeepNet, arXiv 2203.00555, section 3, which tracks it through early training.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from deepnet.anatomy.base import FoundSite
from deepnet.anatomy.locate import locate
from deepnet.errors import ConfigError, suggest
from deepnet.probes.listening import first_tensor, on_output, peeked
from deepnet.probes.place import Place, layer_places


@dataclass(frozen=True, kw_only=True)
class Movement:
    """The distance between two outputs of one module."""

    norm: float
    """Euclidean, over all elements."""
    rms: float
    """Root mean square over the elements: does not grow with the batch or the width."""
    relative: float
    """The norm over that of the output it is compared with."""


class ModelUpdate:
    """Compares a model's output, and those of its named layers, with what they were when this was made.

    `inputs` are the positional arguments of a call, or keyword arguments as a mapping. The model runs in evaluation
    mode without gradients; its modes are put back and nothing is left on it.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Sequence[Any] | Mapping[str, Any],
        *,
        layers: Sequence[str] = (),
    ) -> None:
        self._model = model
        self._inputs = inputs
        self._layers = tuple(layers)
        self._first = self._last = self._outputs()

    def measure(self) -> dict[str, Movement]:
        """Return how far each layer's output has moved by its name, and the model's own under ""."""
        self._last = self._outputs()
        return {name: distance(self._last[name], self._first[name]) for name in self._last}

    def measure_step(self) -> dict[str, Movement]:
        """Return how far the outputs have moved since the last measurement."""
        before, self._last = self._last, self._outputs()
        return {name: distance(now, before[name]) for name, now in self._last.items()}

    @torch.no_grad()
    def _outputs(self) -> dict[str, list[Tensor]]:
        """Return what the model (under "") and each layer gave, once per call of that module."""
        seen: dict[str, list[Tensor]] = {name: [] for name in ("", *self._layers)}
        with evaluating(self._model), ExitStack() as hooks:
            for name, module in self._modules().items():
                hooks.callback(module.register_forward_hook(_keeper(seen[name])).remove)
            if isinstance(self._inputs, Mapping):
                self._model(**self._inputs)
            else:
                self._model(*self._inputs)
        silent = [name for name, outputs in seen.items() if not outputs]
        if silent:
            raise ConfigError(
                f"module '{silent[0]}' did not run in the model's forward pass; name one that does"
            )
        return seen

    def _modules(self) -> dict[str, nn.Module]:
        known = dict(self._model.named_modules())
        for name in self._layers:
            if name not in known:
                raise ConfigError(f"the model has no module '{name}'{suggest(name, known)}")
        return {name: known[name] for name in ("", *self._layers)}


class LayerOutputs:
    """Keeps what each layer of a model returned last: of a stream of several tensors, the one that it shows."""

    def __init__(self, model: nn.Module) -> None:
        """Raise AdaptError for a model whose residual sites are not known."""
        self._layers = dict(layer_places(locate(model)))
        self._hooks = ExitStack()
        self.outputs: dict[Place, Tensor] = {}

    def __enter__(self) -> Self:
        """Start listening."""
        self.outputs = {}
        for place, found in self._layers.items():
            on_output(found.part.owner, partial(self._keep, place, found), self._hooks)
        return self

    def __exit__(self, *error: object) -> None:
        """Stop listening."""
        self._hooks.close()

    def _keep(self, place: Place, found: FoundSite, output: Any) -> None:
        self.outputs[place] = peeked(found, output).detach().clone()


def distance(now: Sequence[Tensor], before: Sequence[Tensor]) -> Movement:
    """Return how far outputs have moved from where they were before."""
    changes = [(a.double() - b.double()).flatten() for a, b in zip(now, before, strict=True)]
    moved, start = torch.cat(changes), torch.cat([t.double().flatten() for t in before])
    norm, origin = float(moved.norm()), float(start.norm())
    relative = norm / origin if origin else (0.0 if not norm else float("inf"))
    return Movement(norm=norm, rms=norm / moved.numel() ** 0.5, relative=relative)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Keep the model in evaluation mode, then give every module back the mode it had."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _keeper(outputs: list[Tensor]) -> Callable[[nn.Module, Any, Any], None]:
    return lambda module, args, output: outputs.append(first_tensor(output).detach().clone())
