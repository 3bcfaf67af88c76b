"""Which engine runs a model, and what it cannot run."""

import importlib
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor

from deepnet.errors import ConfigError
from deepnet.training.config import TrainingConfig
from deepnet.training.engine.base import Engine
from deepnet.training.engine.data_parallel import DataParallel
from deepnet.training.engine.in_backward import InBackward
from deepnet.training.engine.ranks import Ranks
from deepnet.training.plan import Plan

_OF_WHOLE_MATRICES = {"lamb": "measures", "adafactor": "measures", "muon": "orthogonalises"}
"""What an optimiser does to whole matrices, of which a process of the sharded engine holds some rows."""


def make_engine(model: nn.Module, plan: Plan, *, ranks: Ranks, **parts: Any) -> Engine:
    """Return what runs a model by a plan; `parts` are its policies and blocks.

    Raises ConfigError for what the sharded engine cannot do.
    """
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise ConfigError(
            "this model is in parts since it was trained with training.engine = 'sharded'; build it anew, and go on "
            "from a checkpoint or a bundle"
        )
    parts |= {"optimizer": plan.optimizer, "precision": plan.precision, "ranks": ranks}
    if plan.training.engine == "sharded":
        refuse_what_needs_whole_weights(plan, ranks)
        # not imported above: what it needs of torch takes as long to import as the rest together
        sharded = importlib.import_module("deepnet.training.engine.sharded")
        engine: Engine = sharded.Sharded(model, offload=plan.training.offload, **parts)
        return engine
    if ranks.world_size > 1:
        return DataParallel(model, **parts)
    return one_process_engine(plan.training)(model, **parts)


def one_process_engine(training: TrainingConfig) -> type[Engine]:
    """Return the kind of engine that runs a model in one process."""
    return InBackward if training.step_in_backward else Engine


def refuse_what_needs_whole_weights(plan: Plan, ranks: Ranks) -> None:
    """Raise ConfigError for what does not work on parts of matrices."""
    name = plan.optimizer.name
    reasons = {
        f"optimizer.name = '{name}', which {_OF_WHOLE_MATRICES.get(name)} whole matrices": (
            name in _OF_WHOLE_MATRICES
        ),
        "training.precision = 'fp16', whose scale the ranks would lower apart; take bf16": (
            plan.precision.name == "fp16"
        ),
        "training.recompute_segment, as it gathers the weights of one block at a time": (
            plan.training.recompute_segment != 1
        ),
        "training.offload on a CPU, where everything is in main memory": (
            plan.training.offload and ranks.device.type == "cpu"
        ),
    }
    for reason, applies in reasons.items():
        if applies:
            raise ConfigError(f"training.engine = 'sharded' does not run {reason}")
