"""The processes that train together, under torchrun; one process is the case of one rank.

Two groups connect them. Control messages have patience: the writer prepares, validates and saves alone, and the others
wait for it there. Gradients have minutes: whoever is later has failed or hangs.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _get_default_store

from deepnet.errors import DeepNetError

T = TypeVar("T")

# ranks wait while the first one prepares text or translates for a validation
CONTROL_PATIENCE = timedelta(days=1)
"""How long a control message may take."""
GRADIENT_PATIENCE = timedelta(minutes=10)
"""How long ranks wait for the slowest one's passes, and for the exchange of their gradients."""
_CAUSE = "deepnet/failure"
"""Where a rank that fails leaves its reason for the others."""


@dataclass(frozen=True)
class Ranks:
    """The place of this process among those that train together."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    rank: int = 0
    world_size: int = 1
    control: dist.ProcessGroup | None = None
    """For control messages, on the CPU whatever the device. None is torch's default group."""
    gradients: dist.ProcessGroup | None = None
    """For gradients and weights, on their devices."""

    @property
    def is_writer(self) -> bool:
        """True for the one process that writes files and the display."""
        return self.rank == 0

    @torch.no_grad()
    def make_equal(self, model: nn.Module) -> None:
        """Give every rank the writer's parameters and buffers."""
        self.wait()
        if self.world_size > 1:
            for tensor in (*model.parameters(), *model.buffers()):
                dist.broadcast(tensor, src=0, group=self.gradients)

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over all ranks, on the CPU."""
        values = values.cpu()
        if self.world_size > 1:
            dist.all_reduce(values, group=self.control)
        return values

    def from_writer(self, compute: Callable[[], T]) -> T:
        """Run `compute` on the writer alone and return its result on every rank."""
        if self.world_size == 1:
            return compute()
        result = [compute() if self.is_writer else None]
        dist.broadcast_object_list(result, src=0, group=self.control)
        return cast(T, result[0])

    def gather(self, value: T) -> list[T]:
        """Return, on every rank, the values of all, in the order of the ranks."""
        if self.world_size == 1:
            return [value]
        values: list[T | None] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.control)
        return cast(list[T], values)

    def wait(self) -> None:
        """Wait until every rank is here."""
        if self.world_size > 1:
            dist.barrier(self.control)


def started_processes() -> int:
    """Return the number of processes that torchrun started together, this one among them; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def joined_ranks(device: torch.device) -> Iterator[Ranks]:
    """Join the processes that torchrun started, if it did; they stay joined until the process ends.

    Launchers keep what the first group wrote, so that a second one would wait for it for ever. "cuda" without a number
    is the device of the local rank. gloo serves the CPU and control messages, nccl CUDA. Raises DeepNetError, with the
    reason where there is one, when another rank has failed.
    """
    world_size = started_processes()
    if world_size == 1:
        yield Ranks(device)
        return
    if device == torch.device("cuda"):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=CONTROL_PATIENCE)
    ranks = Ranks(
        device,
        dist.get_rank(),
        world_size,
        control=dist.new_group(backend="gloo", timeout=CONTROL_PATIENCE),
        gradients=dist.new_group(
            backend="nccl" if device.type == "cuda" else "gloo", timeout=GRADIENT_PATIENCE
        ),
    )
    try:
        yield ranks
    except Exception as error:
        if _comes_from_others(error):
            raise DeepNetError(
                f"rank {ranks.rank} stopped, because {_reason_of_others()}; the latest checkpoint is as it was, resume "
                "from it"
            ) from error
        _leave_reason(f"rank {ranks.rank} failed: {type(error).__name__}: {error}")
        raise


def _comes_from_others(error: Exception) -> bool:
    """Return whether an error is that of an exchange: the connection is closed, or nothing came."""
    is_exchange = isinstance(error, dist.DistError) or "gloo" in str(error)
    return isinstance(error, RuntimeError) and is_exchange


def _leave_reason(reason: str) -> None:
    with suppress(RuntimeError):  # where the process that keeps it has ended
        _get_default_store().set(_CAUSE, reason.splitlines()[0])


def _reason_of_others() -> str:
    """Return what the rank that failed said, or what is known where it said nothing."""
    with suppress(RuntimeError):
        store = _get_default_store()
        if store.check([_CAUSE]):
            return str(store.get(_CAUSE).decode())
    return "another rank ended without a word or does not answer: killed, out of memory or cut off"
