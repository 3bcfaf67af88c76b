"""What the probes of the forward pass have in common: hooks that are always taken off, and calls that count once.

Under activation recompute a module runs a second time, in the backward pass; that run is not listened to.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn

from deepnet.anatomy.base import FoundSite
from deepnet.anatomy.locate import locate
from deepnet.errors import ConfigError
from deepnet.probes.place import Place


class ForwardProbe(ABC):
    """A context manager that reads a model's forward passes and leaves nothing on it.

    Readings are means over the calls, root mean squares pooled over them. Entering starts anew.
    """

    def __init__(self, model: nn.Module) -> None:
        """Raise AdaptError for a model whose residual sites are not known."""
        self.anatomy = locate(model)
        self._tallies: dict[Place, Tensor] = {}
        self._hooks = ExitStack()

    def __enter__(self) -> Self:
        """Start listening."""
        self._tallies.clear()
        with ExitStack() as hooks:
            hooks.enter_context(fused_paths_off())
            self._listen(hooks)
            self._hooks = hooks.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop listening."""
        self._hooks.close()

    def readings(self) -> dict[Place, float]:
        """Return what was read so far, by place; a place that no call reached is not in it."""
        return {place: self._result(*tally.tolist()) for place, tally in self._tallies.items()}

    @abstractmethod
    def _listen(self, hooks: ExitStack) -> None:
        """Put hooks on the model, each with its removal in `hooks`."""

    def _result(self, total: float, weight: float) -> float:
        """Return the reading from the two sums that `_count` made."""
        return total / weight if weight else float("nan")

    def _count(self, place: Place, total: Tensor, weight: Tensor | float = 1.0) -> None:
        """Add to the two sums of a place, which stay on the device until they are read."""
        entry = torch.stack([total.double(), torch.as_tensor(weight).to(total.device).double()])
        self._tallies[place] = self._tallies[place] + entry if place in self._tallies else entry


class PooledProbe(ForwardProbe):
    """A probe of root mean squares: of sums of squares over counts, or over other sums of squares."""

    def _result(self, total: float, weight: float) -> float:
        """Return the root of the quotient; a quotient by nothing is infinite."""
        if weight:
            return float((total / weight) ** 0.5)
        return float("inf") if total else float("nan")


@contextmanager
def fused_paths_off() -> Iterator[None]:
    """Keep torch.nn's layers from running as one kernel, in which no module is called."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def is_recomputing() -> bool:
    """Return whether this runs inside a backward pass, as recompute does."""
    return torch._C._current_graph_task_id() != -1


def on_arguments(module: nn.Module, see: Callable[..., None], hooks: ExitStack) -> None:
    """Let `see` have the positional and the named arguments of each call of a module before it runs."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not is_recomputing():
            _unseen(see, args, kwargs)

    hooks.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)


def on_input(module: nn.Module, see: Callable[[Any], None], hooks: ExitStack) -> None:
    """Let `see` have the first argument of each call of a module before it runs."""

    def first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        see(next(iter((*args, *kwargs.values()))))

    on_arguments(module, first, hooks)


def on_output(module: nn.Module, see: Callable[[Any], None], hooks: ExitStack) -> None:
    """Let `see` have what each call of a module returns."""

    def hook(_: nn.Module, args: Any, output: Any) -> None:
        if not is_recomputing():
            _unseen(see, output)

    hooks.callback(module.register_forward_hook(hook).remove)


def on_method(
    owner: nn.Module,
    name: str,
    see: Callable[..., None],
    hooks: ExitStack,
) -> None:
    """Let `see` have the result and the arguments of each call of a method, which stands on the instance meanwhile."""
    attributes = vars(owner)
    inner = attributes.get(name)
    method: Callable[..., Any] = inner or type(owner).__dict__[name].__get__(owner)

    def watched(*args: Any) -> Any:
        result = method(*args)
        if not is_recomputing():
            _unseen(see, result, *args)
        return result

    attributes[name] = watched
    hooks.callback(_put_back, attributes, name, inner)


def _put_back(attributes: dict[str, Any], name: str, inner: Callable[..., Any] | None) -> None:
    if inner is None:
        del attributes[name]
    else:
        attributes[name] = inner


def _unseen(see: Callable[..., None], *values: Any) -> None:
    """Call `see` so that autograd takes no notice."""
    with torch.no_grad():
        see(*values)


def output_in(model: nn.Module, call: Callable[[], object]) -> Any:
    """Return what the model's forward returned during a call that runs it, such as a loss.

    Raises ConfigError where the call does not run the model as a whole.
    """
    outputs: list[Any] = []
    with ExitStack() as hooks:
        on_output(model, outputs.append, hooks)
        call()
    if not outputs:
        raise ConfigError(
            "the probes look at what the model returns, but the loss calls only parts of it; "
            "call the model itself there, or set probes.every = 0"
        )
    return outputs[-1]


def first_tensor(output: Any) -> Tensor:
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


def peeked(found: FoundSite, state: Any) -> Tensor:
    """Return the one tensor [B, T, D] to look at of what a site's owner is given or returns."""
    return (found.part.peek or first_tensor)(state)


def wide(x: Tensor) -> Tensor:
    """Return a tensor in float32, or float64 where it is that already."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def norm(x: Tensor) -> Tensor:
    """Return the Euclidean norm over all elements, in float64."""
    length: Tensor = torch.linalg.vector_norm(wide(x))
    return length.double()


def sum_of_squares(x: Tensor) -> Tensor:
    """Return the sum of squares of all elements, in float64."""
    return norm(x).square()
