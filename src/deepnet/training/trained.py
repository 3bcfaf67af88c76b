"""Everything of a run that changes while it trains: what a checkpoint holds."""

from dataclasses import dataclass

from deepnet.probes.norm_input import NormInputs
from deepnet.training.engine.base import Engine
from deepnet.training.guard.config import GuardConfig
from deepnet.training.guard.judge import Guard
from deepnet.training.guard.signals import watched_parameters
from deepnet.training.optimization.averaging import MovingAverage
from deepnet.training.plan import Plan
from deepnet.training.state import TrainingState


@dataclass(frozen=True)
class Trained:
    """Weights, optimiser, averages, what the guard remembers, and the counters."""

    engine: Engine
    """With the model, its optimiser and the scaler of fp16."""
    average: MovingAverage | None
    guard: Guard
    state: TrainingState


def untrained(
    engine: Engine, plan: Plan, *, guard: GuardConfig, norm_inputs: NormInputs
) -> Trained:
    """Return what a run begins with, before a checkpoint is loaded into it."""
    decay = plan.training.ema_decay
    return Trained(
        engine,
        MovingAverage(engine.held, decay=decay, warms_up=plan.average_warms_up) if decay else None,
        Guard(
            guard,
            parameters=watched_parameters(engine.model),
            norm_inputs=norm_inputs.places,
            norm_sources=norm_inputs.sources,
        ),
        TrainingState(),
    )
