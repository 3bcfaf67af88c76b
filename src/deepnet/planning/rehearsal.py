"""Both passes of a micro-batch on tensors without memory: what they would hold and compute, for any model.

What runs is what trains: the model's own code, its precision, its recompute, its engine. torch's fake tensors stand in
for the numbers, so that a model of any size is rehearsed on any machine.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from deepnet.data.objectives import Batch
from deepnet.errors import PlanError
from deepnet.planning.live_bytes import UNCLAIMED, LiveBytes
from deepnet.training.config import OptimizerConfig, TrainingConfig
from deepnet.training.engine.base import Engine
from deepnet.training.engine.precision import Precision
from deepnet.training.engine.ranks import Ranks
from deepnet.training.engine.recompute import recomputing
from deepnet.training.loss import token_loss
from deepnet.transformer.models import Transformer

WEIGHTS, GRADIENTS = "weights", "gradients"
"""Kinds of bytes, beside `live_bytes.UNCLAIMED`."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Under what a model trains."""

    training: TrainingConfig
    optimizer: OptimizerConfig
    precision: Precision
    device: torch.device
    accumulates: bool
    """Whether an update has several micro-batches: the gradients of the first are there when the second begins."""


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What both passes of one micro-batch hold, in bytes, and compute."""

    weights: int
    """Parameters and buffers."""
    gradients: int
    """The most at once: all of them, unless each is dropped when its parameter has taken its step."""
    trained: tuple[str, ...]
    """The parameters that have a gradient."""
    activations: int
    """What the forward pass keeps for the backward pass, when the loss is known."""
    most: Mapping[str, int]
    """By kind when most is held; of the activations, with what is needed for that moment."""
    largest: int
    """The largest piece of the activations, as a rule the logits."""
    made_forward: int
    """Bytes of all activations that the forward pass makes, those that it drops at once included."""
    forward_flops: int
    backward_flops: int
    """With what is computed again, where training.recompute says so."""
    attention_flops: int
    """Of both passes, what grows with the square of the sentence length."""


@contextmanager
def without_memory(device: torch.device) -> Iterator[FakeTensorMode]:
    """Let all tensors that are made inside have shapes and types on `device`, but no numbers.

    Raises PlanError where the code inside asks for a number.
    """
    told = failures_told("it does not run on tensors without numbers")
    with told, FakeTensorMode() as mode, torch.device(device):
        yield mode


@contextmanager
def failures_told(what: str) -> Iterator[None]:
    """Raise PlanError for what goes wrong in the model's code inside, saying `what` that means."""
    try:
        yield
    except Exception as error:  # a scheme of one's own may fail in its own way
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise PlanError(f"this model cannot be planned, as {what}: {reason}") from error


def rehearse(
    model: Transformer, batch: Batch, *, conditions: Conditions, mode: FakeTensorMode
) -> Rehearsal:
    """Run both passes of a micro-batch; to be called, and `model` to be made, inside `without_memory`."""
    live = LiveBytes()
    known: dict[str, int] = {}
    live.claim([*model.parameters(), *model.buffers()], WEIGHTS)
    gradients = _Gradients(model, live, conditions)
    compute = token_loss(label_smoothing=conditions.training.label_smoothing)
    faked = _faked(batch, mode).to(conditions.device)

    def loss(module: nn.Module) -> Tensor:
        found = compute(module, faked)
        known.update(forward_flops=live.flops.total(), made_forward=live.made)
        # not yet: what autocast has cast of the weights is let go after the loss
        found.register_hook(  # type: ignore[no-untyped-call]
            lambda _: known.update(activations=live.held[UNCLAIMED])
        )
        return found

    with _recomputing(model, conditions.training), gradients.followed(), live:
        _engine(model, conditions).add_gradients(loss, num_tokens=batch.num_tokens, sends=True)
    return Rehearsal(
        weights=live.held[WEIGHTS],
        gradients=gradients.most,
        trained=gradients.names,
        most=dict(live.most),
        largest=live.largest,
        backward_flops=live.flops.total() - known["forward_flops"],
        attention_flops=live.flops["attention"],
        **known,
    )


def _recomputing(model: Transformer, training: TrainingConfig) -> AbstractContextManager[None]:
    blocks = [layer for stack in model.stacks() for layer in stack.layers]
    return recomputing(model, training, blocks=blocks)


def _engine(model: Transformer, conditions: Conditions) -> Engine:
    return Engine(
        model.train(),
        optimizer=OptimizerConfig(name="sgd"),  # one has to be there, and takes no step
        precision=conditions.precision,
        ranks=Ranks(conditions.device),
    )


class _Gradients:
    """Counts each gradient as one from when it is complete, or from the beginning where they add up."""

    def __init__(self, model: Transformer, live: LiveBytes, conditions: Conditions) -> None:
        self.most = 0
        """Bytes at once."""
        self._live, self._are_dropped = live, conditions.training.step_in_backward
        self._parameters = dict(model.named_parameters())
        self._trained: set[Tensor] = set()
        for parameter in self._parameters.values():
            parameter.grad = torch.zeros_like(parameter) if conditions.accumulates else None
            if parameter.grad is not None:
                live.claim([parameter.grad], GRADIENTS)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Count meanwhile."""
        hooks = [
            parameter.register_post_accumulate_grad_hook(self._count)  # type: ignore[no-untyped-call]
            for parameter in self._parameters.values()
        ]
        yield
        for hook in hooks:
            hook.remove()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the parameters that have had a gradient."""
        return tuple(name for name, one in self._parameters.items() if one in self._trained)

    def _count(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self._trained.add(parameter)
        self._live.claim([parameter.grad], GRADIENTS)
        self.most = max(self.most, self._live.held[GRADIENTS])
        if self._are_dropped:
            parameter.grad = None


def _faked(batch: Batch, mode: FakeTensorMode) -> Batch:
    tensors: dict[str, Any] = {
        name: mode.from_tensor(value)
        for name, value in vars(batch).items()
        if isinstance(value, Tensor)
    }
    return replace(batch, **tensors)
