"""What an optimiser needs to carry out the multipliers that were chosen for the ends: policies, or torch's groups."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from torch import nn

from deepnet.adapt.state import SchemeState
from deepnet.anatomy.base import Weight
from deepnet.anatomy.locate import locate
from deepnet.anatomy.rows import distinct_rows
from deepnet.errors import AdaptError
from deepnet.schemes.base import Policy, Role
from deepnet.transformer.initialize import parameter_policies
from deepnet.transformer.models import Transformer

PolicyRow = tuple[str, nn.Parameter, Policy]
Share = Literal["all", "matrices", "others"]


def parameter_groups(
    model: nn.Module, *, lr: float, weight_decay: float = 0.0, only: Share = "all"
) -> list[dict[str, Any]]:
    """Return every trainable parameter of our Transformer or an adopted model once, in groups for an optimiser.

    A module around such a model will do, too. Embeddings and the vocabulary projection have `lr` and `weight_decay`
    times what was chosen for them; norms, biases and scales no decay; all others both as given. For Muon `only` the
    "matrices" of branches (q, k, v, out, fc1, gate, fc2) are taken, for the AdamW beside it the "others". The groups
    are the same in every process and after `from_pretrained`. Raises AdaptError where no part of the model carries a
    scheme, or where two parts ask for different things of one parameter, or the scheme for an eps per role, or where
    matrices that are wanted apart are parts of one.
    """
    groups: dict[Policy, list[nn.Parameter]] = {}
    for _, parameter, policy in chosen_policies(model) if only == "all" else divided(model):
        is_wanted = only == "all" or (policy.depth > 0) == (only == "matrices")
        if parameter.requires_grad and is_wanted:
            groups.setdefault(replace(policy, depth=0), []).append(parameter)
    if any(policy.eps != 1.0 for policy in groups):
        raise AdaptError(
            "this scheme multiplies the optimiser's eps by role, which these groups cannot say; train the model by a "
            "recipe or with train_model"
        )
    return [
        {
            "params": parameters,
            "lr": lr * policy.lr,
            "weight_decay": weight_decay * policy.weight_decay,
        }
        for policy, parameters in groups.items()
    ]


def chosen_policies(model: nn.Module) -> list[PolicyRow]:
    """Return name, parameter and policy of every parameter of a model that carries a scheme, or holds one that does.

    Raises AdaptError where none does, or where two parts ask for different things of one parameter.
    """
    found: dict[int, Policy] = {}
    carriers = [m for m in model.modules() if isinstance(m, (Transformer, SchemeState))]
    for carrier in carriers:
        for parameter, policy in _own(carrier):
            if found.setdefault(id(parameter), policy) != policy:
                raise AdaptError(
                    "two models share rows and were given different [ends]; choose the same for both"
                )
    if not carriers:
        raise AdaptError(
            f"{type(model).__name__} carries no scheme; expected a Transformer of deepnet, a model given one by "
            "apply_scheme, or read by from_pretrained, or a module around it"
        )
    return [
        (name, p, found.get(id(p), Policy(weight_decay=float(p.dim() > 1))))
        for name, p in model.named_parameters()
    ]


def divided(model: nn.Module) -> list[PolicyRow]:
    """Return `chosen_policies` with the depth of every matrix inside a branch, an adopted model's too.

    Raises AdaptError where such a matrix is not a parameter of its own, [out, in], too.
    """
    carriers = [module for module in model.modules() if isinstance(module, SchemeState)]
    depths = dict(found for carrier in carriers for found in _depths(carrier))
    return [
        (name, p, replace(policy, depth=depths.get(id(p), policy.depth)))
        for name, p, policy in chosen_policies(model)
    ]


def _depths(carrier: SchemeState) -> Iterator[tuple[int, int]]:
    """Yield the layers of its stack for every matrix of an adopted model's branches, by the parameter's identity."""
    anatomy = locate(carrier.stepped())
    for stack in anatomy.stacks:
        for site in stack.sites:
            for weight in site.part.weights:
                _refuse_packed(weight, anatomy.path(weight.owner))
                yield id(weight.parameter), stack.num_layers


def _refuse_packed(weight: Weight, path: str) -> None:
    if weight.rows is not None or weight.transposed:
        how = "one of several in" if weight.rows is not None else "stored [in, out] in"
        raise AdaptError(
            f"Muon takes q, k and v each by itself, [out, in], and here {weight.role} is {how} {path}.{weight.name}; "
            "take adamw for this model"
        )


def carries_scheme(model: nn.Module) -> bool:
    """Return whether a model is our Transformer, carries an adopted scheme, or holds one that does."""
    return any(isinstance(module, (Transformer, SchemeState)) for module in model.modules())


def _own(carrier: Transformer | SchemeState) -> list[tuple[nn.Parameter, Policy]]:
    """Return what our own model asks of every parameter, an adopted one of those that hold tokens' rows."""
    if isinstance(carrier, Transformer):
        return [(parameter, policy) for _, parameter, policy in parameter_policies(carrier)]
    uses = distinct_rows(locate(carrier.stepped()).rows())
    return [(use.weight, _chosen(carrier, use.role)) for use in uses]


def _chosen(state: SchemeState, role: Role) -> Policy:
    rate, decay = state.ends.of(role, "lr"), state.ends.of(role, "weight_decay")
    return Policy(lr=1.0 if rate is None else rate, weight_decay=1.0 if decay is None else decay)
