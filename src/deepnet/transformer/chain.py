"""Layers that run one after the other, in one place, so that something can be put around several of them."""

from typing import Any

from torch import nn


class Chain(nn.ModuleList):
    """Layers, each of which is called with the state that the one before it left, and with what all of them share."""

    def run(self, state: Any, *shared: Any) -> Any:
        """Return the state after the last layer; not called as a module, so that no hook takes the chain for one."""
        for layer in self:
            state = layer(state, *shared)
        return state
