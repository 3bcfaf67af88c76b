"""Averages of weights: over time while training (EMA), and over checkpoints afterwards."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from deepnet.errors import CheckpointError


class MovingAverage:
    """An exponential moving average of named parameters: average = decay * average + (1 - decay) * parameter.

    The decay of update t, from 0, is min(decay, (1 + t) / (10 + t)) where the average `warms_up`: else the first
    weights are most of it for 1 / (1 - decay) updates.

    Source: num_updates of TensorFlow's ExponentialMovingAverage.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], *, decay: float, warms_up: bool = True
    ) -> None:
        self._parameters, self._decay, self._warms_up = parameters, decay, warms_up
        self.tensors = {name: held.detach().clone() for name, held in parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move the average towards the parameters, once per update; `step` is the number of updates before this one."""
        warm = (1 + step) / (10 + step) if self._warms_up else 1.0
        move = get_ema_multi_avg_fn(min(self._decay, warm))  # type: ignore[no-untyped-call]
        parameters = [parameter.detach() for parameter in self._parameters.values()]
        move(list(self.tensors.values()), parameters, 0)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over a saved average of the same parameters."""
        for name, average in self.tensors.items():
            average.copy_(tensors[name])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the parameters hold the average for the length of a block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, parameter in self._parameters.items():
            kept = parameter.detach().clone()
            parameter.copy_(self.tensors[name])
            self.tensors[name].copy_(kept)


def average_tensors(groups: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of equally named tensors, summed in float64; what is not floating point is taken from the last.

    Raises CheckpointError when names or shapes differ.
    """
    first = groups[0]
    for other in groups[1:]:
        if {n: t.shape for n, t in other.items()} != {n: t.shape for n, t in first.items()}:
            raise CheckpointError("the checkpoints to average hold different tensors")
    largest = max((tensor.numel() for tensor in first.values()), default=0)
    sums = torch.empty(
        largest, dtype=torch.float64
    )  # one for all: freed pieces would not be used again
    return {name: _mean([group[name] for group in groups], sums) for name in first}


def _mean(tensors: Sequence[Tensor], sums: Tensor) -> Tensor:
    if not tensors[0].is_floating_point():
        return tensors[-1]
    total = sums[: tensors[0].numel()].view(tensors[0].shape).zero_()
    for tensor in tensors:
        total += tensor
    return total.div_(len(tensors)).to(tensors[0].dtype, copy=True)
