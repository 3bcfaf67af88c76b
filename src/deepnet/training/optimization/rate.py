"""The learning rate of the coming update: the schedule's, after what the guard has learnt."""

from deepnet.training.optimization.optimizers import applied_learning_rate, set_learning_rate
from deepnet.training.optimization.schedules import learning_rate, lengthened_warmup
from deepnet.training.session import Session


def set_rate(session: Session, seconds: float) -> float:
    """Set the rate of the coming update, which begins at `seconds`, and return the one that takes effect.

    `seconds` is the writer's clock, so that all ranks have the same rate.
    """
    plan, step, memory = session.plan, session.state.step, session.trained.guard.memory
    annealed = _annealed(session, seconds)
    schedules = (plan.schedule, lengthened_warmup(plan.schedule, memory.warmup_factor))
    peak = plan.optimizer.lr
    lr = min(
        learning_rate(step, peak=peak, config=config, annealed=annealed) for config in schedules
    )
    lr *= memory.lr_factor
    set_learning_rate(session.engine.optimizer, lr)
    return applied_learning_rate(plan.optimizer, lr=lr, step=step)


def _annealed(session: Session, seconds: float) -> float:
    """Return how much of the fall towards the run's epochs or minutes is done; note where the warm-up ended."""
    state, plan = session.state, session.plan
    now = state.moment(seconds=seconds, updates_per_epoch=plan.updates_per_epoch)
    if state.warmed_up is None and state.step >= plan.schedule.warmup_steps:
        state.warmed_up = now
    return plan.annealing.progress(now, warmed_up=state.warmed_up)
