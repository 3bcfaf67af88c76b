"""Weights drawn by role, as the scheme's plan says, and what the draw came to."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    BRANCH_MATRICES,
    Ends,
    Init,
    ModelOfRoles,
    Policy,
    Role,
    RoleWeight,
    SitePlan,
    StackName,
)
from deepnet.transformer.grouped_query import full_draw

_TOKEN_ROLES: tuple[Role, ...] = ("embedding", "vocabulary")
"""Those whose last row is padding's."""


class PlannedModel(ModelOfRoles, Protocol):
    """A model that knows which role each of its weights has, and what is planned for it."""

    def modules(self) -> Iterator[nn.Module]:
        """Yield every module once."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield every parameter once, with its name."""

    def role_policies(self) -> Iterator[tuple[nn.Module, Mapping[Role, Policy]]]:
        """Yield the policies by role of what is in a module, a later answer in place of an earlier one."""


def planned_weight(
    stack: StackName, layer: int, role: Role, parameter: Tensor, plan: SitePlan | Ends
) -> RoleWeight:
    """Return a weight with what `plan` says of its role; raises ConfigError where it says no draw."""
    if role not in plan.init:
        raise ConfigError(f"the scheme plans no initialisation for the role '{role}' ({stack})")
    policy = plan.policy.get(role, Policy())
    init = full_draw(plan.init[role], role, parameter)
    return RoleWeight(stack, layer, role, parameter, init, policy)


@dataclass(frozen=True, kw_only=True)
class RoleReport:
    """One line of the initialisation report: the pooled std of a role in a stack against what was aimed at."""

    stack: str
    role: str
    count: int
    expected_std: float
    measured_std: float

    @property
    def standard_errors(self) -> float:
        """Return how many standard errors of a normal sample's std the measured one is off."""
        if self.expected_std == 0.0:
            return 0.0 if self.measured_std == 0.0 else float("inf")
        return abs(self.measured_std / self.expected_std - 1.0) * math.sqrt(2.0 * self.count)


@torch.no_grad()
def initialize(model: PlannedModel) -> None:
    """Draw every weight of `model` as its scheme's plan says; biases 0, padding's rows 0."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for weight in model.role_weights():
        draw(weight.parameter, weight.init)
        if weight.role in _TOKEN_ROLES:
            weight.parameter[-1] = 0.0


@torch.no_grad()
def draw(weight: Tensor, init: Init) -> None:
    """Fill `weight` [fan_out, fan_in] in place."""
    if init.kind == "xavier_normal":
        nn.init.xavier_normal_(weight, gain=init.value)
    elif init.kind == "xavier_uniform":
        nn.init.xavier_uniform_(weight, gain=init.value)
    elif init.kind == "normal":
        nn.init.normal_(weight, std=init.value)
    elif init.kind == "uniform":
        nn.init.uniform_(weight, -init.value, init.value)
    else:
        nn.init.constant_(weight, init.value)


def initialization_report(model: ModelOfRoles) -> list[RoleReport]:
    """Return expected and measured std, pooled per stack and role, of a freshly initialised model."""
    pools: dict[tuple[str, str], list[RoleWeight]] = {}
    for weight in model.role_weights():
        pools.setdefault((weight.stack, weight.role), []).append(weight)
    return [_report(stack, role, pool) for (stack, role), pool in pools.items()]


def _report(stack: str, role: str, pool: list[RoleWeight]) -> RoleReport:
    """Pool matrices of possibly different targets by their mean squares; padding's zero row is left out."""
    counts = [drawn_rows(w).numel() for w in pool]
    total = sum(counts)
    aimed = sum(
        n * w.init.std(w.parameter.shape[1], w.parameter.shape[0]) ** 2
        for n, w in zip(counts, pool, strict=True)
    )
    found = sum(float(drawn_rows(w).double().square().sum()) for w in pool)
    return RoleReport(
        stack=stack,
        role=role,
        count=total,
        expected_std=(aimed / total) ** 0.5,
        measured_std=(found / total) ** 0.5,
    )


def drawn_rows(weight: RoleWeight) -> Tensor:
    """Return a matrix without the row of padding."""
    rows = weight.parameter.detach()
    return rows[:-1] if weight.role in _TOKEN_ROLES else rows


def parameter_policies(model: PlannedModel) -> list[tuple[str, nn.Parameter, Policy]]:
    """Return every parameter once with its name and policy; norms, biases and scales are never decayed."""
    policies = dict(_small_policies(model))
    policies |= dict(_matrix_policies(list(model.role_weights())))
    undecayed = Policy(weight_decay=0.0)
    return [
        (name, parameter, policies.get(id(parameter), undecayed))
        for name, parameter in model.named_parameters()
    ]


def small_role(
    module: nn.Module,
    name: str,
    *,
    norms: tuple[type[nn.Module], ...] = (nn.LayerNorm, nn.RMSNorm),
) -> Role:
    """Return the role of a parameter that is no matrix, from the module that owns it."""
    if isinstance(module, norms):
        return "norm"
    return "bias" if name == "bias" else "scale"


def _matrix_policies(weights: list[RoleWeight]) -> Iterator[tuple[int, Policy]]:
    """Yield the policy of every matrix with a role, by the parameter's identity."""
    depths: dict[StackName, int] = {}
    for weight in weights:
        depths[weight.stack] = max(depths.get(weight.stack, 0), weight.layer)
    for weight in weights:
        depth = depths[weight.stack] if weight.role in BRANCH_MATRICES else 0
        yield id(weight.parameter), replace(weight.policy, depth=depth)


def _small_policies(model: PlannedModel) -> Iterator[tuple[int, Policy]]:
    """Yield the policy of every norm, bias and scale, by the parameter's identity."""
    for owner, policies in model.role_policies():
        for module in owner.modules():
            for name, parameter in module.named_parameters(recurse=False):
                policy = policies.get(small_role(module, name), Policy())
                yield id(parameter), replace(policy, weight_decay=0.0)
