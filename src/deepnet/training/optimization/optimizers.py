"""The optimiser of a recipe, built from parameters that carry their own multipliers."""

import importlib
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn, optim

from deepnet.errors import ConfigError
from deepnet.training.config import OptimizerConfig

LR_MULTIPLIER = "lr_multiplier"
"""The key of a parameter group that says by what its learning rate is multiplied."""


class Policy(Protocol):
    """How the optimiser treats one parameter: multipliers of what the recipe says."""

    @property
    def lr(self) -> float:
        """Multiplier of the learning rate."""

    @property
    def weight_decay(self) -> float:
        """Multiplier of the weight decay."""

    @property
    def eps(self) -> float:
        """Multiplier of eps."""


@dataclass(frozen=True)
class PlainPolicy:
    """The multipliers of a parameter that nothing special is known about."""

    lr: float = 1.0
    weight_decay: float = 1.0
    eps: float = 1.0


PolicyRow = tuple[str, nn.Parameter, Policy]


def plain_policies(model: nn.Module) -> list[PolicyRow]:
    """Return a policy per parameter of any model: no weight decay on vectors and scalars (norms, biases, scales)."""
    return [
        (name, parameter, PlainPolicy(weight_decay=float(parameter.dim() > 1)))
        for name, parameter in model.named_parameters()
    ]


def build_optimizer(config: OptimizerConfig, *, policies: Iterable[PolicyRow]) -> optim.Optimizer:
    """Build the optimiser with one parameter group per distinct policy; frozen parameters are left out.

    Raises ConfigError when nothing is trainable or an optional package is missing.
    """
    members: dict[tuple[float, float, float], list[nn.Parameter]] = defaultdict(list)
    for _, parameter, policy in policies:
        if parameter.requires_grad:
            members[policy.lr, policy.weight_decay, policy.eps].append(parameter)
    if not members:
        raise ConfigError(
            "no parameter of the model requires a gradient; there is nothing to train"
        )
    return _construct(
        config, [_group(config, key, parameters) for key, parameters in members.items()]
    )


def set_learning_rate(optimizer: optim.Optimizer, lr: float) -> None:
    """Give every parameter group the learning rate `lr` times its own multiplier."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group[LR_MULTIPLIER]


def applied_learning_rate(config: OptimizerConfig, *, lr: float, step: int) -> float:
    """Return the rate that takes effect at update `step`: torch's Adafactor never goes above 1/sqrt(step + 1)."""
    return min(lr, 1 / math.sqrt(step + 1)) if config.name == "adafactor" else lr


_EPS = {"adam": 1e-8, "adamw": 1e-8, "radam": 1e-8, "lamb": 1e-6}


def _group(
    config: OptimizerConfig, key: tuple[float, float, float], parameters: list[nn.Parameter]
) -> dict[str, Any]:
    lr, weight_decay, eps = key
    group: dict[str, Any] = {
        "params": parameters,
        "lr": config.lr * lr,
        "weight_decay": config.weight_decay * weight_decay,
        LR_MULTIPLIER: lr,
    }
    if config.name == "adafactor":
        group["eps"] = (None if config.eps is None else config.eps * eps, 1e-3)
    elif config.name != "sgd":
        group["eps"] = (config.eps or _EPS[config.name]) * eps
    return group


def _construct(config: OptimizerConfig, groups: list[dict[str, Any]]) -> optim.Optimizer:
    match config.name:
        case "adam":
            return optim.Adam(groups, betas=config.betas, fused=True)
        case "adamw":
            return optim.AdamW(groups, betas=config.betas, fused=True)
        case "radam":
            return optim.RAdam(groups, betas=config.betas)
        case "sgd":
            return optim.SGD(groups, momentum=config.momentum)
        case "adafactor":
            return optim.Adafactor(groups)
        case "lamb":
            return _lamb(config, groups)


def _lamb(config: OptimizerConfig, groups: list[dict[str, Any]]) -> optim.Optimizer:
    """Build LAMB with weight decay inside the trust ratio, as in its paper (arXiv 1904.00962, algorithm 2)."""
    try:
        library = importlib.import_module("pytorch_optimizer")
    except ImportError as error:
        raise ConfigError(
            "optimizer.name = 'lamb' needs the package pytorch-optimizer; install "
            "'deepnet-transformers[optimizers]' or choose another optimiser"
        ) from error
    # without adam_debias the library divides the whole step, trust ratio included, by 1 - beta1^t: at first ten times
    # too far
    lamb: optim.Optimizer = library.Lamb(
        groups, betas=config.betas, weight_decouple=False, adam_debias=True
    )
    return lamb
