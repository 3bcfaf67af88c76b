"""Steps in the backward pass: a parameter takes its step as soon as its gradient is complete, which is then dropped.

So gradients never lie beside each other, but for those that autograd itself is still adding up: of embeddings that are
used at both ends of a model. A step reads one parameter and its own state, so that the arithmetic, the learning rates
and the checkpoints are those of the ordinary step. What needs all gradients before any weight moves is refused.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from deepnet.errors import ConfigError
from deepnet.training.config import OptimizerConfig, TrainingConfig
from deepnet.training.engine.base import Engine, gradient_norms
from deepnet.training.guard.config import GuardConfig


class InBackward(Engine):
    """Runs a model in one process, and steps its parameters one by one in the backward pass."""

    steps_in_backward = True

    def __init__(self, model: nn.Module, **parts: Any) -> None:
        super().__init__(model, **parts)
        self._group_of = {
            parameter: number
            for number, group in enumerate(self.optimizer.param_groups)
            for parameter in group["params"]
        }
        self._norms: dict[Tensor, Tensor] = {}

    def drop_gradients(self) -> None:
        """Forget what the update before showed."""
        super().drop_gradients()
        self._norms.clear()

    def num_passes(self, num_batches: int) -> int:
        """Return 1; raises ConfigError where there are more, as the first pass would already move the weights."""
        if num_batches > 1:
            raise ConfigError(_refusal(_micro_batches(num_batches)))
        return num_batches

    def add_gradients(
        self, loss: Callable[[nn.Module], Tensor], *, num_tokens: int, sends: bool
    ) -> Tensor:
        """Run both passes of a micro-batch, in which the weights take their step, and return its loss."""
        with self._stepping():
            return super().add_gradients(loss, num_tokens=num_tokens, sends=sends)

    def measure_gradients(self) -> Tensor:
        """Return the L2 norm that each parameter's gradient had, [P] in their order."""
        nothing = next(iter(self._norms.values())).new_zeros(())
        return torch.stack(
            [self._norms.get(parameter, nothing) for parameter in self.held.values()]
        )

    def step(self, *, norm: Tensor, clip_norm: float) -> None:
        """Do nothing: the weights have taken their step."""

    @contextmanager
    def _stepping(self) -> Iterator[None]:
        """Step each parameter when its gradient is complete: once, however often it was used."""
        hooks = [
            parameter.register_post_accumulate_grad_hook(self._take) for parameter in self._group_of
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _take(self, parameter: Tensor) -> None:
        """Let one parameter take its step: the optimiser is shown its group without the others."""
        assert isinstance(parameter, nn.Parameter)
        self._norms[parameter] = gradient_norms([parameter])[0]
        groups = self.optimizer.param_groups
        alone = {**groups[self._group_of[parameter]], "params": [parameter]}
        self.optimizer.param_groups = [alone]
        try:
            self.optimizer.step()
        finally:
            self.optimizer.param_groups = groups
        parameter.grad = None


def refuse_whole_gradients(
    training: TrainingConfig,
    optimizer: OptimizerConfig,
    guard: GuardConfig,
    *,
    has_probes: bool,
    micro_batches: int = 1,
    num_processes: int = 1,
) -> None:
    """Raise ConfigError for what needs all gradients of an update before it, where training.step_in_backward is set."""
    reasons = whole_gradients_needed(
        training,
        optimizer,
        guard,
        has_probes=has_probes,
        micro_batches=micro_batches,
        num_processes=num_processes,
    )
    if training.step_in_backward and reasons:
        raise ConfigError(_refusal("; ".join(reasons)))


def whole_gradients_needed(
    training: TrainingConfig,
    optimizer: OptimizerConfig,
    guard: GuardConfig,
    *,
    has_probes: bool,
    micro_batches: int = 1,
    num_processes: int = 1,
) -> list[str]:
    """Return why weights cannot move one by one in the backward pass, a phrase for each thing that is in the way."""
    reasons = {
        f"training.clip_norm = {training.clip_norm}, as the norm of the whole gradient is known once all of it is "
        "there; set it to 0": training.clip_norm > 0,
        _micro_batches(micro_batches): micro_batches > 1,
        "training.precision = 'fp16', whose scaler skips the step of a gradient that is not finite; take bf16": (
            training.precision == "fp16"
        ),
        "guard.spike or guard.nan = 'skip', as the weights have taken an update when the guard judges it; warn, stop "
        "and roll_back work": guard.skips,
        "the probes, which read the gradients of the whole model; set probes.every = 0": has_probes,
        "optimizer.name = 'lamb', which counts its steps for all parameters together": (
            optimizer.name == "lamb"
        ),
        "training.engine = 'sharded', which has its gradients when the pass is over": (
            training.engine == "sharded"
        ),
        f"{num_processes} processes, whose gradients are sent together": num_processes > 1,
    }
    return [reason for reason, applies in reasons.items() if applies]


def _micro_batches(number: int) -> str:
    return (
        f"updates of {number} micro-batches, as the first would move the weights under the second; set "
        "batching.micro_batches_per_update = 1"
    )


def _refusal(reason: str) -> str:
    return f"training.step_in_backward = true does not go together with {reason}"
