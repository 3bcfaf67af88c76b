"""The optimiser of a recipe, built from parameters that carry their own multipliers."""

import importlib
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn, optim

from deepnet.errors import ConfigError
from deepnet.training.config import MuonConfig, OptimizerConfig
from deepnet.training.optimization.muon import PART, MuonAndAdamW

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

    @property
    def depth(self) -> int:
        """Layers of its stack where the parameter is a matrix of a branch, which Muon takes, else 0."""


@dataclass(frozen=True)
class PlainPolicy:
    """The multipliers of a parameter that nothing special is known about."""

    lr: float = 1.0
    weight_decay: float = 1.0
    eps: float = 1.0
    depth: int = 0


PolicyRow = tuple[str, nn.Parameter, Policy]


def plain_policies(model: nn.Module) -> list[PolicyRow]:
    """Return a policy per parameter of any model: no weight decay on vectors and scalars (norms, biases, scales)."""
    return [
        (name, parameter, PlainPolicy(weight_decay=float(parameter.dim() > 1)))
        for name, parameter in model.named_parameters()
    ]


def build_optimizer(config: OptimizerConfig, *, policies: Iterable[PolicyRow]) -> optim.Optimizer:
    """Build the optimiser with one parameter group per distinct policy; frozen parameters are left out.

    Raises ConfigError when nothing is trainable, an optional package is missing, or Muon is not told of any matrix.
    """
    trained = [row for row in policies if row[1].requires_grad]
    if not trained:
        raise ConfigError(
            "no parameter of the model requires a gradient; there is nothing to train"
        )
    is_muon = config.name == "muon"
    return _construct(config, (_two_kinds_of_groups if is_muon else _groups)(config, trained))


def set_learning_rate(optimizer: optim.Optimizer, lr: float) -> None:
    """Give every parameter group the learning rate `lr` times its own multiplier."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group[LR_MULTIPLIER]


def applied_learning_rate(config: OptimizerConfig, *, lr: float, step: int) -> float:
    """Return the rate that takes effect at update `step`: torch's Adafactor never goes above 1/sqrt(step + 1)."""
    return min(lr, 1 / math.sqrt(step + 1)) if config.name == "adafactor" else lr


_EPS = {"adam": 1e-8, "adamw": 1e-8, "radam": 1e-8, "lamb": 1e-6, "muon": 1e-8}


_Members = dict[tuple[float, float, float], list[nn.Parameter]]


def _members(rows: Iterable[PolicyRow]) -> _Members:
    """Return the parameters of each distinct set of multipliers: of the rate, of the decay and of eps."""
    members: _Members = defaultdict(list)
    for _, parameter, policy in rows:
        members[policy.lr, policy.weight_decay, policy.eps].append(parameter)
    return members


def _groups(config: OptimizerConfig, rows: Iterable[PolicyRow]) -> list[dict[str, Any]]:
    return [_group(config, key, parameters) for key, parameters in _members(rows).items()]


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


def _two_kinds_of_groups(
    config: OptimizerConfig, rows: Iterable[PolicyRow]
) -> list[dict[str, Any]]:
    """Return Muon's groups, then AdamW's."""
    matrices, rest = _divided(rows)
    muon = config.muon or MuonConfig()
    if not muon.nesterov and any(p.dtype == torch.bfloat16 for _, p, _ in matrices):
        raise ConfigError(
            "optimizer.muon.nesterov = false loses the running mean of weights in bfloat16, which torch's Muon (2.13) "
            "then normalises in place; keep the weights in float32, or leave nesterov on"
        )
    groups = [_muon_group(config, muon, key, found) for key, found in _members(matrices).items()]
    groups += [{**group, PART: "adamw", "betas": config.betas} for group in _groups(config, rest)]
    if muon.L_base:
        _scale_by_depth(groups, muon.L_base / max(policy.depth for _, _, policy in matrices))
    return groups


def _muon_group(
    config: OptimizerConfig,
    muon: MuonConfig,
    key: tuple[float, float, float],
    parameters: list[nn.Parameter],
) -> dict[str, Any]:
    multiplier, weight_decay, _ = key
    peak = muon.lr or config.lr
    return {
        "params": parameters,
        "lr": peak * multiplier,
        "weight_decay": muon.weight_decay * weight_decay,
        LR_MULTIPLIER: peak / config.lr * multiplier,
        PART: "muon",
        "momentum": muon.momentum,
        "nesterov": muon.nesterov,
        "ns_steps": muon.ns_steps,
        "adjust_lr_fn": muon.adjust_lr,
    }


def _scale_by_depth(groups: list[dict[str, Any]], ratio: float) -> None:
    """Multiply every rate by the square root of `ratio`, L_base / L, and Muon's decay by `ratio`.

    Source: microsoft/ArchScale, pretrain.py, the code of HyperP (arXiv 2603.28743), whose d0 is L_base.
    """
    for group in groups:
        group["lr"] *= math.sqrt(ratio)
        group[LR_MULTIPLIER] *= math.sqrt(ratio)
        group["weight_decay"] *= ratio if group[PART] == "muon" else 1.0


def _divided(rows: Iterable[PolicyRow]) -> tuple[list[PolicyRow], list[PolicyRow]]:
    """Return the matrices of branches, and the rest; raises ConfigError where Muon cannot step the first."""
    matrices: list[PolicyRow] = []
    rest: list[PolicyRow] = []
    for row in rows:
        (matrices if row[2].depth else rest).append(row)
    if not matrices:
        raise ConfigError(
            "optimizer.name = 'muon' takes the matrices of branches (q, k, v, out, fc1, gate, fc2), and which of the "
            "trained parameters they are is not known; give the model a scheme by apply_scheme, give train_loop "
            "policies with a depth, or take adamw"
        )
    for name, parameter, policy in matrices:
        _check_matrix(name, parameter, policy)
    return matrices, rest


def _check_matrix(name: str, parameter: nn.Parameter, policy: Policy) -> None:
    if parameter.dim() != 2:
        raise ConfigError(
            f"Muon steps matrices, and {name} has the shape {list(parameter.shape)}; give it a policy of depth 0, "
            "with which it is AdamW's, or take adamw"
        )
    if policy.eps != 1.0:
        raise ConfigError(
            f"the scheme multiplies the eps of {name} by {policy.eps:.3g}, and Muon has none of Adam's kind; take "
            "adamw, or another scheme"
        )


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
        case "muon":
            return MuonAndAdamW(groups)


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
