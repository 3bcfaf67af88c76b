"""The memory that a run takes on its device, by kind, and the most it holds at once."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from deepnet.planning.live_bytes import UNCLAIMED
from deepnet.planning.optimizer_bytes import step_bytes
from deepnet.planning.rehearsal import GRADIENTS, WEIGHTS, Conditions, Rehearsal
from deepnet.training.config import TrainingConfig

# measured: docs/plan.md
_PER_TENSOR, _AT_LEAST = 2_600, 4_600_000
"""Bytes of main memory that torch and Python take beside the numbers: for each tensor that stays, and in any case."""
_LEFT_BY_HEAP = 0.21
"""What glibc's heap leaves unused, over the bytes of all activations that a forward pass makes."""
_PINNED_BY_STEPS = 1.5
"""How many times as much it is where weights take their step in the backward pass."""
ERROR = 0.1
"""How far a plan may be above what is needed, over itself: docs/plan.md has the measurements."""
_KINDS = (
    "weights",
    "gradients",
    "optimizer",
    "average",
    "activations",
    "objects",
    "heap",
    "process",
)


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
    """What Python and torch take beside the numbers; in main memory only."""
    heap: int
    """What the C library's heap leaves unused between the tensors; in main memory only."""
    process: int
    """What this process held before: Python, torch, the text; in main memory only."""
    at_peak: Mapping[str, int]
    """What the numbers are of when most is held."""
    moment: Literal["passes", "step"]
    """When that is: in both passes, or while the weights take the step."""

    def exceeds(self, there: int) -> bool:
        """Return whether so many bytes cannot hold what is needed, even if the plan is off by as much as it may be."""
        return self.needed * (1 - ERROR) > there

    @property
    def peak(self) -> int:
        """Return the most bytes held at once, of everything."""
        return self.needed + self.heap

    @property
    def needed(self) -> int:
        """Return the same with a heap that leaves nothing unused, below which no run can be."""
        return sum(self.at_peak.values()) + self.objects + self.process

    def kinds(self) -> dict[str, int]:
        """Return the bytes of each kind; they need not all be there at the peak."""
        return {name: getattr(self, name) for name in _KINDS}


def plan_memory(
    rehearsal: Rehearsal,
    *,
    parameters: Mapping[str, Tensor],
    matrices: Collection[str] = (),
    optimizer: Mapping[str, Tensor],
    conditions: Conditions,
    process: int,
) -> MemoryPlan:
    """Return what a run takes whose passes were rehearsed, with these parameters and optimiser's states.

    `matrices` are the names of those inside branches, `process` is what this process held before, where that counts.
    """
    on_card = conditions.device.type == "cuda"
    kept = {
        "optimizer": _bytes(optimizer),
        "average": _bytes(parameters) if conditions.training.ema_decay else 0,
    }
    in_passes = {**rehearsal.most, **kept}
    # of a step in the backward pass the last one, when no activations are left: that of the embedding, as a rule
    at_once = max(parameter.nbytes for parameter in parameters.values())
    in_step = {
        WEIGHTS: rehearsal.weights,
        GRADIENTS: at_once if conditions.training.step_in_backward else rehearsal.gradients,
        UNCLAIMED: step_bytes(
            conditions.optimizer, parameters, device=conditions.device, matrices=matrices
        ),
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
        heap=0 if on_card else _left_by_heap(rehearsal, conditions.training),
        process=0 if on_card else process,
        at_peak=in_passes if passes_need_more else in_step,
        moment="passes" if passes_need_more else "step",
        **kept,
    )


def _left_by_heap(rehearsal: Rehearsal, training: TrainingConfig) -> int:
    """Return what glibc's heap leaves unused, as fitted to runs.

    Recompute leaves a place for the logits besides, and what steps keep among the tensors of a pass pins more of them.
    """
    left = _LEFT_BY_HEAP * rehearsal.made_forward + rehearsal.largest * training.recompute
    return int(left * (_PINNED_BY_STEPS if training.step_in_backward else 1))


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())
