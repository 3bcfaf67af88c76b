"""What an optimiser keeps of each parameter, and what it needs to step, as a real one shows that steps a small one."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn, optim

from deepnet.errors import PlanError
from deepnet.planning.live_bytes import UNCLAIMED, LiveBytes
from deepnet.training.checkpoint.optimizer_state import optimizer_state
from deepnet.training.config import OptimizerConfig
from deepnet.training.optimization.optimizers import PlainPolicy, build_optimizer

_SIZES = (2, 3, 5, 7)
"""The axes of a small parameter, each of another size, so that those of its state can be told apart."""
_MEASURED = 256
"""The axes of the parameter whose step is measured: what is not of its size does not count beside it."""


def optimizer_tensors(
    config: OptimizerConfig, parameters: Mapping[str, Tensor], *, matrices: Collection[str] = ()
) -> dict[str, Tensor]:
    """Return the optimiser's state after a step, by the names it has in a checkpoint, as tensors without numbers.

    `matrices` are the names of those that Muon takes. Raises PlanError where a state is of no shape that follows from
    its parameter's.
    """
    kinds = {name: (p.dim(), name in matrices) for name, p in parameters.items()}
    kept = {
        (axes, inside): _kept(_of(config, inside=inside), axes)
        for axes, inside in set(kinds.values())
    }
    return {
        f"{key}.{name}": torch.empty(_scaled(one, parameter), dtype=one.dtype, device="meta")
        for name, parameter in parameters.items()
        for key, one in kept[kinds[name]].items()
    }


def step_bytes(
    config: OptimizerConfig,
    parameters: Mapping[str, Tensor],
    *,
    device: torch.device,
    matrices: Collection[str] = (),
) -> int:
    """Return what a step needs for a moment beside weights, gradients and states, in bytes.

    On a CPU torch steps one parameter after the other, so that the largest counts; on a card all at once, but for Muon,
    whose largest matrix, of those called `matrices`, counts on both: the AdamW beside it needs nothing.
    """
    sizes = [
        parameter.nbytes
        for name, parameter in parameters.items()
        if config.name != "muon" or name in matrices
    ]
    parameter = nn.Parameter(torch.ones(_MEASURED, _MEASURED))
    optimizer = _stepped(config, parameter)
    at_once = device.type != "cpu" and _can_step_at_once(optimizer)
    for group in optimizer.param_groups:
        group["foreach"] = at_once
    share = _most_beside(optimizer, parameter) / parameter.nbytes
    return int(share * (sum(sizes) if at_once else max(sizes)))


def _of(config: OptimizerConfig, *, inside: bool) -> OptimizerConfig:
    """Return what steps a parameter that is one of the matrices inside branches, or is not."""
    if config.name != "muon" or inside:
        return config
    return config.model_copy(update={"name": "adamw"})


def _kept(config: OptimizerConfig, axes: int) -> dict[str, Tensor]:
    """Return the state of a small parameter of so many axes."""
    parameter = nn.Parameter(torch.ones(_SIZES[:axes]))
    tensors, _ = optimizer_state(_stepped(config, parameter), parameters={"p": parameter})
    return {name.removesuffix(".p"): tensor for name, tensor in tensors.items()}


def _stepped(config: OptimizerConfig, parameter: nn.Parameter) -> optim.Optimizer:
    optimizer = build_optimizer(config, policies=[("p", parameter, PlainPolicy(depth=1))])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def _scaled(small: Tensor, parameter: Tensor) -> list[int]:
    """Return the shape that what is kept of a small parameter has for this one."""
    sizes = {1: 1, **dict(zip(_SIZES, parameter.shape, strict=False))}
    if small.dim() not in (0, parameter.dim()) or not set(small.shape) <= sizes.keys():
        raise PlanError(
            f"the optimiser keeps {list(small.shape)} of a parameter {list(_SIZES[: parameter.dim()])}, from which "
            "its bytes for larger ones cannot be told"
        )
    return [sizes[size] for size in small.shape]


def _can_step_at_once(optimizer: optim.Optimizer) -> bool:
    groups = optimizer.param_groups
    return all("foreach" in group and not group.get("fused") for group in groups)


def _most_beside(optimizer: optim.Optimizer, parameter: nn.Parameter) -> int:
    """Return the most bytes that a step of the optimiser holds beside what is there before it."""
    state = [one for one in optimizer.state[parameter].values() if isinstance(one, Tensor)]
    assert parameter.grad is not None
    live = LiveBytes()
    live.claim([parameter, parameter.grad, *state], "there")
    with live:
        optimizer.step()
    return live.most[UNCLAIMED]
