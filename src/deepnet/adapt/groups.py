"""The parameter groups with which any torch optimiser carries out the multipliers that were chosen for the ends."""

from typing import Any

from torch import nn

from deepnet.adapt.state import SchemeState
from deepnet.anatomy.locate import locate
from deepnet.anatomy.rows import distinct_rows
from deepnet.errors import AdaptError

Factors = tuple[float, float]
"""What the learning rate and the weight decay are multiplied by."""


def parameter_groups(
    model: nn.Module, *, lr: float, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Return every trainable parameter of an adopted model, or of one around it, once, in groups for an optimiser.

    Embeddings and the vocabulary projection have `lr` and `weight_decay` times what was chosen for them; norms, biases
    and scales, which have one dimension, no decay; all others both as given. The groups are the same in every process
    and after `from_pretrained`. Raises AdaptError where no part of the model carries a scheme.
    """
    factors = _row_factors(model)
    groups: dict[Factors, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            usual = 1.0, 1.0 if parameter.dim() > 1 else 0.0
            groups.setdefault(factors.get(id(parameter), usual), []).append(parameter)
    return [
        {"params": parameters, "lr": lr * rate, "weight_decay": weight_decay * decay}
        for (rate, decay), parameters in groups.items()
    ]


def _row_factors(model: nn.Module) -> dict[int, Factors]:
    """Return the factors of every parameter that holds tokens' rows, by identity."""
    states = [module for module in model.modules() if isinstance(module, SchemeState)]
    if not states:
        raise AdaptError(
            f"{type(model).__name__} carries no scheme; expected a model given one by apply_scheme, or read by "
            "from_pretrained, or a module around it"
        )
    found = {}
    for state in states:
        for use in distinct_rows(locate(state.stepped()).rows()):
            rate, decay = state.ends.of(use.role, "lr"), state.ends.of(use.role, "weight_decay")
            found[id(use.weight)] = 1.0 if rate is None else rate, 1.0 if decay is None else decay
    return found
