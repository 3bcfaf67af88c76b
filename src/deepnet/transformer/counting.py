"""How many parameters a model has, and where."""

from torch import nn

from deepnet.transformer.models import Transformer


def count_parameters(model: Transformer) -> dict[str, int]:
    """Return the parameters of each stack, of the embeddings (shared ones once) and in all."""
    counts: dict[str, int] = {stack.name: _count(stack) for stack in model.stacks()}
    total = _count(model)
    return {**counts, "embeddings": total - sum(counts.values()), "total": total}


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
