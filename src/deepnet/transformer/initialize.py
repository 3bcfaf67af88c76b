"""Weights drawn by role, as the scheme's plan says, and what the draw came to."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from deepnet.errors import ConfigError
from deepnet.schemes.base import Init, Policy, Role, StackName
from deepnet.transformer.layers import Sublayer
from deepnet.transformer.positions import LearnedPositions

if TYPE_CHECKING:
    from deepnet.transformer.models import Transformer


class RoleWeight(NamedTuple):
    """A weight with its role, where it stands and how the plan treats it."""

    stack: StackName
    role: Role
    parameter: Tensor
    init: Init
    policy: Policy


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


def initialize(model: "Transformer") -> None:
    """Draw every weight of `model` as its scheme's plan says; biases 0, padding's rows 0."""
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for weight in role_weights(model):
        draw(weight.parameter, weight.init)
    with torch.no_grad():
        for embedding in (model.source_embedding, model.target_embedding, model.vocabulary.rows):
            embedding.weight[embedding.padding] = 0.0


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


def role_weights(model: "Transformer") -> Iterator[RoleWeight]:
    """Yield every matrix of `model` once, with its role: the sites' first, then embeddings and the projection."""
    for stack in model.stacks():
        for module in stack.modules():
            if isinstance(module, Sublayer):
                plan = module.residual.plan
                for role, parameter in module.branch.roles():
                    yield _role_weight(stack.name, role, parameter, plan.init, plan.policy)
    yield from _end_weights(model)


def _end_weights(model: "Transformer") -> Iterator[RoleWeight]:
    seen: set[int] = set()
    for stack in model.stacks():
        ends = stack.plan.ends
        embedding = model.source_embedding if stack.name == "encoder" else model.target_embedding
        roles: list[tuple[Role, Tensor]] = [("embedding", embedding.weight)]
        if stack is model.stacks()[-1] and not model.vocabulary.tied:
            roles.append(("vocabulary", model.vocabulary.rows.weight))
        if isinstance(stack.entry.positions, LearnedPositions):
            roles.append(("position", stack.entry.positions.weight))
        for role, parameter in roles:
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield _role_weight(stack.name, role, parameter, ends.init, ends.policy)


def _role_weight(
    stack: StackName,
    role: Role,
    parameter: Tensor,
    inits: Mapping[Role, Init],
    policies: Mapping[Role, Policy],
) -> RoleWeight:
    if role not in inits:
        raise ConfigError(f"the scheme plans no initialisation for the role '{role}' ({stack})")
    return RoleWeight(stack, role, parameter, inits[role], policies.get(role, Policy()))


def initialization_report(model: "Transformer") -> list[RoleReport]:
    """Return expected and measured std, pooled per stack and role, of a freshly initialised model."""
    pools: dict[tuple[str, str], list[RoleWeight]] = {}
    for weight in role_weights(model):
        pools.setdefault((weight.stack, weight.role), []).append(weight)
    return [_report(stack, role, pool) for (stack, role), pool in pools.items()]


def _report(stack: str, role: str, pool: list[RoleWeight]) -> RoleReport:
    """Pool matrices of possibly different targets by their mean squares; padding's zero row is left out."""
    counts = [_drawn(w).numel() for w in pool]
    total = sum(counts)
    aimed = sum(
        n * w.init.std(w.parameter.shape[1], w.parameter.shape[0]) ** 2
        for n, w in zip(counts, pool, strict=True)
    )
    found = sum(float(_drawn(w).double().square().sum()) for w in pool)
    return RoleReport(
        stack=stack,
        role=role,
        count=total,
        expected_std=(aimed / total) ** 0.5,
        measured_std=(found / total) ** 0.5,
    )


def _drawn(weight: RoleWeight) -> Tensor:
    rows = weight.parameter.detach()
    return rows[:-1] if weight.role in ("embedding", "vocabulary") else rows


def parameter_policies(model: "Transformer") -> list[tuple[str, nn.Parameter, Policy]]:
    """Return every parameter once with its name and policy; norms, biases and scales are never decayed."""
    policies = dict(_small_policies(model))
    policies |= {id(weight.parameter): weight.policy for weight in role_weights(model)}
    undecayed = Policy(weight_decay=0.0)
    return [
        (name, parameter, policies.get(id(parameter), undecayed))
        for name, parameter in model.named_parameters()
    ]


def _small_policies(model: "Transformer") -> Iterator[tuple[int, Policy]]:
    """Yield the policy of every norm, bias and scale, by the parameter's identity."""
    for stack in model.stacks():
        owners: list[tuple[nn.Module, Mapping[Role, Policy]]] = [(stack, stack.plan.ends.policy)]
        if stack is model.stacks()[-1] and model.logit_scale is not None:
            owners.append((model.logit_scale, stack.plan.ends.policy))
        owners += [(m, m.residual.plan.policy) for m in stack.modules() if isinstance(m, Sublayer)]
        for owner, policies in owners:
            for module in owner.modules():
                for name, parameter in module.named_parameters(recurse=False):
                    policy = policies.get(_small_role(module, name), Policy())
                    yield id(parameter), replace(policy, weight_decay=0.0)


def _small_role(module: nn.Module, name: str) -> Role:
    """Return the role of a parameter that is no branch's matrix, from the module that owns it."""
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return "norm"
    return "bias" if isinstance(module, nn.Linear) and name == "bias" else "scale"
