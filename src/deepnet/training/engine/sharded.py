"""Sharded: every rank holds a part of each matrix, and of its gradient and optimiser state, by torch's FSDP2.

A block is whole only while it computes; what is in no block, the embeddings, is whole during both passes. Vectors and
single numbers, which are a thousandth of a model, are whole on every rank, so that norms and scales stay in float32
where matrices are gathered in bf16: the arithmetic is that of the other engines.

Every pass of the model is an exchange between all ranks. So each of them runs as many as the one with the most
micro-batches, and all of them validate.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, Shard

from deepnet.training.engine.base import Engine, T, gradient_norms
from deepnet.training.engine.ranks import Ranks

_NARROWEST = 8
"""Rows or columns below which a table of numbers is no matrix: a factor per head, maps between a few streams."""


class Sharded(Engine):
    """Runs one model of which every rank holds a part; with `offload` that part lies in main memory."""

    def __init__(self, model: nn.Module, *, offload: bool = False, **parts: Any) -> None:
        self._offload = offload
        super().__init__(model, **parts)

    def num_passes(self, num_batches: int) -> int:
        """Return the largest number of micro-batches of any rank."""
        number = torch.tensor(num_batches, device=self.ranks.device)
        dist.all_reduce(number, dist.ReduceOp.MAX, group=self._mesh.get_group())
        return int(number.item())

    def keep_up(self, loss: Callable[[nn.Module], Tensor]) -> None:
        """Run both passes for what they exchange alone; nothing listens to a model in evaluation mode."""
        self.model.eval()
        with self.precision.autocast():
            idle = loss(self.module) * 0.0
        idle.backward()  # type: ignore[no-untyped-call]
        self.model.train()

    @torch.no_grad()
    def measure_gradients(self) -> Tensor:
        """Take the gradients over to what is held; return the L2 norm of each parameter's, [P] in their order."""
        for name, parameter in self._parts.items():
            gradient = parameter.grad
            assert gradient is None or isinstance(gradient, DTensor)
            self.held[name].grad = None if gradient is None else gradient.to_local()
        self._average_whole()
        norms = torch.zeros(len(self.held), dtype=torch.float64, device=self.ranks.device)
        held = list(self.held.values())
        for rows, numbers in self._rows:
            chosen = [held[number] for number in numbers]
            if any(parameter.grad is not None for parameter in chosen):
                norms.index_copy_(0, rows, gradient_norms(chosen).to(norms))
        squares = norms.square() * self._are_parts
        dist.all_reduce(squares, group=self._mesh.get_group())
        return torch.where(self._are_parts, squares.sqrt(), norms)

    def evaluate(
        self, compute: Callable[[], T], *, guarded: Callable[[Callable[[], T]], T | None]
    ) -> list[T] | None:
        """Return what this rank's `compute` finds, as every other's does; a signal is answered once it is there.

        In the run's precision, in which matrices are gathered.
        """
        assert isinstance(self.model, FSDPModule)
        self.model.unshard()  # for what calls a part of the model, such as its encoder
        with self.precision.autocast():
            found = compute()
        self.model.reshard()
        return [found]

    def described(self, name: str, tensor: Tensor) -> Tensor:
        """Return what has the shape of the whole of which a rank holds `tensor`."""
        if not self._is_part(name, tensor):
            return tensor
        return torch.empty(self._parts[name].shape, dtype=tensor.dtype, device="meta")

    def gather(self, name: str, tensor: Tensor) -> Tensor:
        """Return the whole of which a rank holds `tensor`; every rank must ask for it."""
        if not self._is_part(name, tensor):
            return tensor
        whole = self._parts[name]
        return DTensor.from_local(
            tensor.detach(),
            self._mesh,
            (Shard(0),),
            run_check=False,
            shape=whole.shape,
            stride=whole.stride(),
        ).full_tensor()

    def part(self, name: str, tensor: Tensor) -> Tensor:
        """Return this rank's part of a whole tensor."""
        if name not in self._parts or tensor.shape != self._parts[name].shape:
            return tensor
        chunks = tensor.chunk(self._mesh.size())
        rank = self.ranks.rank
        return chunks[rank] if rank < len(chunks) else tensor[:0]

    def _hold(self, blocks: Sequence[nn.Module]) -> Mapping[str, nn.Parameter]:
        self._mesh = _mesh(self.ranks)
        options: dict[str, Any] = {
            "mesh": self._mesh,
            "ignored_params": {p for p in self.model.parameters() if not _is_matrix(p)},
            "offload_policy": CPUOffloadPolicy() if self._offload else OffloadPolicy(),
        }
        matrices = MixedPrecisionPolicy(cast_forward_inputs=False)
        if self.precision.name == "bf16":
            matrices = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
            )
        for block in blocks:
            fully_shard(block, mp_policy=matrices, **options)
        fully_shard(self.model, **options)
        assert isinstance(self.model, FSDPModule)
        # else the first block to run without the model around it, in a validation, would take itself for the root
        self.model._get_fsdp_state()._lazy_init()
        parameters = dict(self.model.named_parameters())
        self._parts = {name: p for name, p in parameters.items() if isinstance(p, DTensor)}
        # on the device once and for all: an update that brought them there would wait for it
        are_parts = torch.tensor([name in self._parts for name in parameters])
        self._are_parts = are_parts.to(self.ranks.device)
        numbers = [chosen.nonzero().flatten() for chosen in (are_parts, ~are_parts)]
        self._rows = [(rows.to(self.ranks.device), rows.tolist()) for rows in numbers]
        return {name: _local(parameter) for name, parameter in parameters.items()}

    def _with_gradients(self) -> list[nn.Parameter]:
        return [*self.held.values(), *self.model.parameters()]

    def _average_whole(self) -> None:
        """Average the gradients of what every rank holds whole, as torch does those of the parts."""
        found = [p.grad for name, p in self.held.items() if name not in self._parts]
        gradients = [gradient for gradient in found if gradient is not None]
        if not gradients:
            return
        together = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(together, group=self._mesh.get_group())
        together /= self._mesh.size()
        pieces = torch.split_with_sizes(together, [gradient.numel() for gradient in gradients])
        for gradient, piece in zip(gradients, pieces, strict=True):
            gradient.copy_(piece.view_as(gradient))

    def _is_part(self, name: str, tensor: Tensor) -> bool:
        return name in self._parts and tensor.shape == self.held[name].shape


def _is_matrix(parameter: nn.Parameter) -> bool:
    return parameter.dim() > 1 and min(parameter.shape) >= _NARROWEST


def _mesh(ranks: Ranks) -> DeviceMesh:
    """Return the ranks as torch's sharding wants them; one process is a group of its own."""
    if not dist.is_initialized():
        backend = "nccl" if ranks.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    group = ranks.gradients or dist.group.WORLD
    assert group is not None
    return DeviceMesh.from_group(group, ranks.device.type)


@torch.no_grad()
def _local(parameter: nn.Parameter) -> nn.Parameter:
    """Return what this rank holds of a parameter, in the same memory."""
    if not isinstance(parameter, DTensor):
        return parameter
    return nn.Parameter(parameter.to_local(), requires_grad=parameter.requires_grad)
