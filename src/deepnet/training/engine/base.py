"""What runs a model: adds up its gradients, measures and clips them, steps, and says what of it this process holds.

This one runs it in one process. The engines of several processes put something around the model from outside, and do a
part of this otherwise; the loop calls them all alike and does not ask which it is.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_

from deepnet.training.config import OptimizerConfig
from deepnet.training.engine.precision import Precision
from deepnet.training.engine.ranks import Ranks
from deepnet.training.optimization.optimizers import PolicyRow, build_optimizer, plain_policies

T = TypeVar("T")


class Engine:
    """Runs a model in one process."""

    steps_in_backward: bool = False
    """Whether the weights have taken an update when its passes are over."""
    held: Mapping[str, nn.Parameter]
    """What this process holds of each parameter, by its name in the model: what the optimiser steps."""

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: OptimizerConfig,
        policies: Iterable[PolicyRow] | None = None,
        blocks: Sequence[nn.Module] = (),
        precision: Precision,
        ranks: Ranks,
    ) -> None:
        self.model, self.precision, self.ranks = model, precision, ranks
        names = {parameter: name for name, parameter in model.named_parameters()}
        rows = [(names[p], policy) for _, p, policy in policies or plain_policies(model)]
        self.held = self._hold(blocks)
        self.optimizer = build_optimizer(
            optimizer, policies=[(name, self.held[name], policy) for name, policy in rows]
        )
        self.scaler = precision.scaler()
        self.module = self._wrap()
        """What the loss calls."""

    def drop_gradients(self) -> None:
        """Forget the gradients of the update before."""
        for parameter in self._with_gradients():
            parameter.grad = None

    @contextmanager
    def kept_gradients(self) -> Iterator[None]:
        """Leave every gradient as it is now, whatever passes run meanwhile."""
        owners = self._with_gradients()
        gradients = [parameter.grad for parameter in owners]
        try:
            yield
        finally:
            for parameter, gradient in zip(owners, gradients, strict=True):
                parameter.grad = gradient

    def num_passes(self, num_batches: int) -> int:
        """Return how many times both passes run on this rank in an update of which it has so many micro-batches."""
        return num_batches

    def keep_up(self, loss: Callable[[nn.Module], Tensor]) -> None:
        """Run both passes for other ranks' sake, where this one has no micro-batch left."""

    def add_gradients(
        self, loss: Callable[[nn.Module], Tensor], *, num_tokens: int, sends: bool
    ) -> Tensor:
        """Run both passes of a micro-batch, add the gradients of its loss over `num_tokens` up, and return its loss.

        Where it `sends`, on the last one of an update, the sum becomes that of all ranks.
        """
        # an engine averages gradients over the ranks; multiplied by their number, the average is the sum
        scale = self.ranks.world_size / num_tokens
        with self._sending(sends):
            with self.precision.autocast():
                found = loss(self.module)
            self.scaler.scale(found * scale).backward()  # type: ignore[no-untyped-call]
        return found.detach()

    def measure_gradients(self) -> Tensor:
        """Take the scale of fp16 off the gradients; return the L2 norm of each parameter's, [P] in their order."""
        self.scaler.unscale_(self.optimizer)
        return gradient_norms(self.held.values())

    def step(self, *, norm: Tensor, clip_norm: float) -> None:
        """Apply the gradient, whose L2 norm is given, scaled down to `clip_norm` where that is above 0."""
        if clip_norm:
            clip_grads_with_norm_(self.held.values(), clip_norm, norm)
        self.scaler.step(self.optimizer)

    def evaluate(
        self, compute: Callable[[], T], *, guarded: Callable[[Callable[[], T]], T | None]
    ) -> list[T] | None:
        """Return, on every rank, what `compute` finds on each by calling the model.

        None where `guarded` broke one of them off, by returning None.
        """
        found = self.ranks.gather(guarded(compute))
        there = [one for one in found if one is not None]
        return there if len(there) == len(found) else None

    def described(self, name: str, tensor: Tensor) -> Tensor:
        """Return what has the shape of the whole of what is held here of the parameter `name`, or of its like."""
        return tensor

    def gather(self, name: str, tensor: Tensor) -> Tensor:
        """Return the whole of what is held here of the parameter `name`, or of its like: a moment, an average."""
        return tensor

    def part(self, name: str, tensor: Tensor) -> Tensor:
        """Return what is held here of a whole tensor: the reverse of `gather`."""
        return tensor

    def _with_gradients(self) -> list[nn.Parameter]:
        """Return whatever has gradients on this process."""
        return list(self.model.parameters())

    def _hold(self, blocks: Sequence[nn.Module]) -> Mapping[str, nn.Parameter]:
        return dict(self.model.named_parameters())

    def _wrap(self) -> nn.Module:
        return self.model

    def _sending(self, sends: bool) -> AbstractContextManager[None]:
        """Return the context of both passes of a micro-batch."""
        return nullcontext()


def gradient_norms(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return the L2 norm of each parameter's gradient, [P] on their device, 0 where it has none."""
    gradients = [parameter.grad for parameter in parameters]
    found = torch._foreach_norm([gradient for gradient in gradients if gradient is not None])
    nothing, norms = found[0].new_zeros(()), iter(found)
    return torch.stack([nothing if gradient is None else next(norms) for gradient in gradients])
