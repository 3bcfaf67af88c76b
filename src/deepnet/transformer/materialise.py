"""Numbers made again: after a model was built without memory, filled with whatever that held, or converted.

Each module with parameters or buffers of its own has `reset_parameters`, which makes these, and not those of the
modules inside it, as its constructor does. Matrices that are drawn by role are left to whoever knows the roles.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate
from typing import Any, Protocol, Self, runtime_checkable

from torch import Tensor, nn

from deepnet.errors import ConfigError, SchemeError


@runtime_checkable
class Resettable(Protocol):
    """A module that makes its own parameters and buffers, but not those of the modules inside it."""

    def reset_parameters(self) -> None:
        """Make them as they are in a new module."""


class DerivedBuffers(nn.Module, ABC):
    """A module whose buffers are copies of Python numbers, made again by every conversion, so that none rounds them."""

    @abstractmethod
    def reset_parameters(self) -> None:
        """Fill the buffers from the numbers."""

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        self.reset_parameters()
        return self


class Materialised(nn.Module):
    """A model that knows whether its weights were made or loaded since its memory was."""

    is_empty = False

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """Move to `device` without the numbers; `reset_parameters` or `load_state_dict` has to follow."""
        super().to_empty(device=device, recurse=recurse)
        self.is_empty = True
        return self

    def check_made(self) -> None:
        """Raise ConfigError where the weights are whatever the memory held."""
        if self.is_empty:
            raise ConfigError(
                f"this {type(self).__name__} has memory for its weights but no weights (to_empty); "
                "call reset_parameters() to draw them, or load_state_dict() to load them (first one, then the other, "
                "where a module of the scheme has buffers that are not saved)"
            )

    def note_loaded(self, missing: Iterable[str]) -> None:
        """Count as made after a state was loaded, unless a tensor has no place in it or is `missing` by all names."""
        left_out = {name for path in missing for name in accumulate(path.split(".")[::-1], _join)}
        if self.is_empty:
            saved = self.state_dict(keep_vars=True).items()
            loaded = {id(tensor) for name, tensor in saved if name not in left_out}
            held = (x for m in self.modules() if not isinstance(m, DerivedBuffers) for x in _own(m))
            self.is_empty = any(id(tensor) not in loaded for tensor in held)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        had_none = _is_meta(self)  # also where a module around this one is emptied
        super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        self.is_empty |= had_none and not _is_meta(self)
        return self


def reset_parts(model: nn.Module, *, drawn: Collection[Tensor] = ()) -> None:
    """Call `reset_parameters` of every module inside `model`, in the order in which their constructors end.

    Raises SchemeError for one that has none, and has parameters that are not `drawn` by role, or buffers.
    """
    elsewhere = {id(tensor) for tensor in drawn}
    for path, module in _inside(model, set()):
        if isinstance(module, Resettable):
            module.reset_parameters()
        elif any(id(tensor) not in elsewhere for tensor in _own(module)):
            raise SchemeError(
                f"{path} ({type(module).__name__}) has parameters or buffers of its own, but no reset_parameters() "
                "that makes them again; give its class one, and let its constructor end by calling it"
            )


def _inside(
    module: nn.Module, seen: set[nn.Module], prefix: str = ""
) -> Iterator[tuple[str, nn.Module]]:
    """Yield every module inside one, with its path, once and after those inside it."""
    for name, child in module.named_children():
        if child not in seen:
            seen.add(child)
            yield from _inside(child, seen, f"{prefix}{name}.")
            yield prefix + name, child


def _own(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def _join(name: str, parent: str) -> str:
    return f"{parent}.{name}"


def _is_meta(model: nn.Module) -> bool:
    return any(parameter.is_meta for parameter in model.parameters())
