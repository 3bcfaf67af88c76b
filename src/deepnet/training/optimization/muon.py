"""torch's Muon for the matrices of branches and torch's AdamW for everything else, as one optimiser.

Muon moves a matrix along the mean of its gradients with all singular values near 1, which five Newton-Schulz steps in
bfloat16 bring about. A row of an embedding, a norm or a scale is no map between two spaces, and is AdamW's.

Source: Jordan et al., Muon: An optimizer for hidden layers in neural networks (2024); Liu et al., Muon is Scalable for
LLM Training, arXiv 2502.16982, for "match_rms_adamw".
"""

from collections.abc import Callable, Iterable
from inspect import unwrap
from typing import Any

import torch
from torch import optim

_PARTS = ("muon", "adamw")
PART = "part"
"""The key of a parameter group that says whose it is: "muon" or "adamw"."""


class MuonAndAdamW(optim.Optimizer):
    """Two of torch's optimisers that step, are saved and are restored as one; each group says whose it is (`PART`)."""

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        super().__init__(groups, {})
        self._divide()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over groups and states, as torch does for a checkpoint or a copy."""
        super().__setstate__(state)
        self._divide()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step every parameter that has a gradient, the matrices first; return what `closure` does, if it is given."""
        with torch.enable_grad():
            loss = closure() if closure else None
        for part in self._parts:
            # what torch has put around a step calls whoever listens for one, and this is one step
            unwrap(type(part).step)(part)
        return loss

    def _divide(self) -> None:
        """Let both work on this optimiser's own groups and states."""
        muon, adamw = ([g for g in self.param_groups if g[PART] == name] for name in _PARTS)
        self._parts: list[optim.Optimizer] = [optim.Muon(muon)] if muon else []
        self._parts += [optim.AdamW(adamw, fused=True)] if adamw else []
        for part in self._parts:
            part.state = self.state
