"""The memory that a run takes on its device, by kind, and the most it holds at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from deepnet.planning.live_bytes import UNCLAIMED
from deepnet.planning.optimizer_bytes import step_bytes
from deepnet.planning.rehearsal import GRADIENTS, WEIGHTS, Conditions, Rehearsal

# measured: docs/plan.md
_PER_TENSOR, _AT_LEAST = 2_600, 2_600_000
"""Bytes of main memory that torch and Python take beside the numbers: for each tensor that stays, and in any case."""


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Bytes that a run takes on its device, and the most at once."""

    weights: int
    """Parameters and buffers."""
    gradients: int
    optimizer: int
    """What the optimiser keeps from step to step."""
    average: int
    """The moving average of the weights."""
    activations: int
    """What the forward pass of the largest micro-batch keeps for the backward pass, in the run's precision."""
    objects: int
    """What Python and torch's allocator take beside the numbers at the peak; in main memory only."""
    process: int
    """What this process held before: Python, torch, the text; in main memory only."""
    at_peak: Mapping[str, int]
    """What the numbers are of when most is held."""
    moment: Literal["passes", "step"]
    """When that is: in both passes, or while the weights take the step."""

    @property
    def peak(self) -> int:
        """Return the most bytes held at once, of everything."""
        return sum(self.at_peak.values()) + self.objects + self.process


def plan_memory(
    rehearsal: Rehearsal,
    *,
    parameters: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    conditions: Conditions,
    process: int,
) -> MemoryPlan:
    """Return what a run takes whose passes were rehearsed, with these parameters and optimiser's states.

    `process` is what this process held before, where that counts.
    """
    on_card = conditions.device.type == "cuda"
    kept = {
        "optimizer": _bytes(optimizer),
        "average": _bytes(parameters) if conditions.training.ema_decay else 0,
    }
    in_passes = {**rehearsal.most, **kept}
    in_step = {
        WEIGHTS: rehearsal.weights,
        GRADIENTS: rehearsal.gradients,
        UNCLAIMED: step_bytes(conditions.optimizer, parameters, device=conditions.device),
        **kept,
    }
    passes_need_more = sum(in_passes.values()) >= sum(in_step.values())
    averaged = len(parameters) if conditions.training.ema_decay else 0
    num_tensors = 2 * len(parameters) + len(optimizer) + averaged
    return MemoryPlan(
        weights=rehearsal.weights,
        gradients=rehearsal.gradients,
        activations=rehearsal.activations,
        objects=0 if on_card else _AT_LEAST + _PER_TENSOR * num_tensors,
        process=0 if on_card else process,
        at_peak=in_passes if passes_need_more else in_step,
        moment="passes" if passes_need_more else "step",
        **kept,
    )


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())
