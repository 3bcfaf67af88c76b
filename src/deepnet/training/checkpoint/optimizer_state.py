"""The state of any torch optimiser as named tensors and plain numbers, and back."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn, optim

from deepnet.errors import CheckpointError


def optimizer_state(
    optimizer: optim.Optimizer, *, parameters: Mapping[str, nn.Parameter]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors, named "key.parameter", and what JSON can hold: other values, and each group's numbers.

    `parameters` are those it steps, by the names they have in the file. The tensors are the optimiser's own, and change
    with it.
    """
    names = _names(optimizer, parameters)
    tensors: dict[str, Tensor] = {}
    values: dict[str, float] = {}
    for index, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            name = f"{key}.{names[index]}"
            if isinstance(value, Tensor):
                tensors[name] = value
            else:
                values[name] = value
    return tensors, {"values": values, "groups": [_numbers(g) for g in optimizer.param_groups]}


def load_optimizer_state(
    optimizer: optim.Optimizer,
    *,
    parameters: Mapping[str, nn.Parameter],
    tensors: Mapping[str, Tensor],
    numbers: Mapping[str, Any],
) -> None:
    """Restore what `optimizer_state` returned; raises CheckpointError when it belongs to other parameters."""
    names = _names(optimizer, parameters)
    index_of = {name: index for index, name in enumerate(names)}
    state: dict[int, dict[str, Any]] = {}
    for full_name, value in {**numbers["values"], **tensors}.items():
        key, _, name = full_name.partition(".")
        if name not in index_of:
            raise CheckpointError(
                f"the optimiser's state is of a parameter '{name}' that is not here"
            )
        state.setdefault(index_of[name], {})[key] = value
    _check_keys(optimizer, state, names)
    saved = optimizer.state_dict()
    if len(saved["param_groups"]) != len(numbers["groups"]):
        raise CheckpointError("the optimiser's state has another number of parameter groups")
    groups = [{**g, **n} for g, n in zip(saved["param_groups"], numbers["groups"], strict=True)]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _check_keys(
    optimizer: optim.Optimizer, state: Mapping[int, Mapping[str, Any]], names: list[str]
) -> None:
    """Raise CheckpointError where a parameter's state lacks what the optimiser itself makes of one of as many axes.

    What that is, an optimiser of the same kind shows with a parameter of one number in a group of the same numbers.
    """
    groups = optimizer.param_groups
    homes = [(number, p.dim()) for number, group in enumerate(groups) for p in group["params"]]
    needed: dict[tuple[int, int], set[str]] = {}
    for index, found in state.items():
        home = homes[index]
        if home not in needed:
            needed[home] = _keys_made(optimizer, groups[home[0]], axes=home[1])
        if lacking := needed[home] - found.keys():
            raise CheckpointError(
                f"the optimiser's state of '{names[index]}' lacks {', '.join(sorted(lacking))}"
            )


def _keys_made(optimizer: optim.Optimizer, group: Mapping[str, Any], *, axes: int) -> set[str]:
    one = nn.Parameter(torch.ones((1,) * axes))
    one.grad = torch.ones_like(one)
    kind: Any = type(optimizer)  # each takes groups alone, which their base class does not
    fresh = kind([{**group, "params": [one]}])
    fresh.step()
    return set(fresh.state[one])


def _names(optimizer: optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> list[str]:
    """Return the names in the order in which the optimiser numbers its parameters."""
    names = {parameter: name for name, parameter in parameters.items()}
    return [names[p] for group in optimizer.param_groups for p in group["params"]]


def _numbers(group: Mapping[str, Any]) -> dict[str, int | float]:
    return {
        key: value
        for key, value in group.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
