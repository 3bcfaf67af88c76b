"""Changes made to a model, each with what undoes it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


class Journal:
    """Makes changes and can undo them all, in reverse order, to the last bit."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        self._kept: dict[int, Tensor] = {}

    def retype(self, module: nn.Module, kind: type[nn.Module]) -> None:
        """Give a module another class."""
        self._undo.append(partial(setattr, module, "__class__", type(module)))
        module.__class__ = kind

    def attribute(self, owner: object, name: str, value: object) -> None:
        """Set a plain attribute that is there."""
        self._undo.append(partial(setattr, owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    def add(self, owner: Any, name: str, value: object) -> None:
        """Set an attribute or submodule that is not there yet."""
        self._undo.append(partial(delattr, owner, name))
        setattr(owner, name, value)

    def replace(self, owner: nn.Module, name: str, module: nn.Module | None) -> None:
        """Put another module, or None, where one is, or where a None could be one."""
        if name in owner._modules:
            self._undo.append(partial(_put_back, owner, name, owner._modules[name]))
            owner._modules[name] = module
        else:
            self._undo.append(partial(setattr, owner, name, None))
            self._undo.append(partial(delattr, owner, name))
            setattr(owner, name, module)

    def keep(self, parameter: Tensor) -> None:
        """Keep a copy of a weight that is about to be overwritten."""
        if id(parameter) not in self._kept:
            kept = self._kept[id(parameter)] = parameter.detach().clone()
            self._undo.append(partial(_write, parameter, kept))

    def undo(self) -> None:
        """Put everything back as it was; a second call does nothing."""
        while self._undo:
            self._undo.pop()()
        self._kept.clear()


def _put_back(owner: nn.Module, name: str, module: nn.Module | None) -> None:
    """Put a module back, on the device to which what replaced it was moved meanwhile."""
    there = owner._modules[name]
    there = owner if there is None else there
    tensors = [*there.parameters(), *there.buffers()]
    if module is not None and tensors:
        module.to(tensors[-1].device)
    owner._modules[name] = module


@torch.no_grad()
def _write(parameter: Tensor, kept: Tensor) -> None:
    parameter.copy_(kept)
