"""Layers that run one after the other, in one place, so that something can be put around several of them."""

from collections.abc import Iterable
from typing import Any

from torch import nn


class Chain(nn.ModuleList):
    """Layers, each of which is called with the state that the one before it left, and with what all of them share.

    All of them run `loops` times, one pass after the other.
    """

    def __init__(self, layers: Iterable[nn.Module] | None = None, *, loops: int = 1) -> None:
        super().__init__(layers)
        self.loops = loops

    def unrolled(self) -> list[nn.Module]:
        """Return the layers as they run: all of them in order, once per loop."""
        return [*self] * self.loops

    def run(self, state: Any, *shared: Any) -> Any:
        """Return the state after the last layer; not called as a module, so that no hook takes the chain for one."""
        for layer in self.unrolled():
            state = layer(state, *shared)
        return state
