"""How many parameters a model has, and where."""

from collections import Counter

from torch import nn

from deepnet.transformer.initialize import small_role
from deepnet.transformer.models import Transformer


def count_parameters(model: Transformer) -> dict[str, int]:
    """Return the parameters of each stack, of the embeddings (shared ones once) and in all."""
    counts: dict[str, int] = {stack.name: _count(stack) for stack in model.stacks()}
    total = _count(model)
    return {**counts, "embeddings": total - sum(counts.values()), "total": total}


def parameters_by_role(model: Transformer) -> dict[str, dict[str, int]]:
    """Return the parameters of each role in each stack, and outside of them as "embeddings", each parameter once."""
    roles = {id(weight.parameter): weight.role for weight in model.role_weights()}
    counts: dict[str, Counter[str]] = {}
    seen: set[int] = set()
    for name, part in [*((stack.name, stack) for stack in model.stacks()), ("embeddings", model)]:
        counts[name] = Counter()
        for module in part.modules():
            for own_name, parameter in module.named_parameters(recurse=False):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    role = roles.get(id(parameter)) or small_role(module, own_name)
                    counts[name][role] += parameter.numel()
    return {name: dict(of_roles) for name, of_roles in counts.items()}


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
