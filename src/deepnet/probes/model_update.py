"""How far a model's outputs have moved since a chosen moment: ||F(x, theta_t) - F(x, theta_0)|| on a fixed batch.

Source: Wang et al., DeepNet, arXiv 2203.00555, section 3, which tracks it through early training.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from deepnet.errors import ConfigError, suggest


@dataclass(frozen=True, kw_only=True)
class Movement:
    """The distance between two outputs of one module."""

    norm: float
    """Euclidean, over all elements."""
    rms: float
    """Root mean square over the elements: does not grow with the batch or the width."""
    relative: float
    """The norm over that of the first output."""


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
        self._first = self._outputs()

    def measure(self) -> dict[str, Movement]:
        """Return how far each layer's output has moved by its name, and the model's own under ""."""
        now = self._outputs()
        return {name: _distance(now[name], self._first[name]) for name in now}

    @torch.no_grad()
    def _outputs(self) -> dict[str, list[Tensor]]:
        """Return what the model (under "") and each layer gave, once per call of that module."""
        seen: dict[str, list[Tensor]] = {name: [] for name in ("", *self._layers)}
        with _evaluating(self._model), ExitStack() as hooks:
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


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Keep the model in evaluation mode, then give every module back the mode it had."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _keeper(outputs: list[Tensor]) -> Callable[[nn.Module, Any, Any], None]:
    return lambda module, args, output: outputs.append(_first_tensor(output).detach().clone())


def _first_tensor(output: Any) -> Tensor:
    """Return the output itself, or the first tensor of a tuple or mapping of outputs."""
    if isinstance(output, Tensor):
        return output
    values = output.values() if isinstance(output, Mapping) else output
    several = isinstance(output, (Mapping, tuple, list))
    found = [value for value in values if isinstance(value, Tensor)] if several else []
    if not found:
        raise ConfigError(
            f"a module returned {type(output).__name__}; expected a tensor or several"
        )
    return found[0]


def _distance(now: list[Tensor], first: list[Tensor]) -> Movement:
    moved, start = (
        torch.cat([t.double().flatten() for t in tensors])
        for tensors in ([a.double() - b.double() for a, b in zip(now, first, strict=True)], first)
    )
    norm, origin = float(moved.norm()), float(start.norm())
    relative = norm / origin if origin else (0.0 if not norm else float("inf"))
    return Movement(norm=norm, rms=norm / moved.numel() ** 0.5, relative=relative)
