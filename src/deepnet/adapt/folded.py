"""An adopted model as the stock model it came from, computing the same function with no code of ours.

    branch scale b    the rows of the branch's last matrix and its bias times b
    skip scale a      the norm before the site emits a*x, the matrices that read it are divided by a; eps stays
    first site        the embedding norm or the embeddings times a; where neither can be, the branch's last matrix
                      and bias divided by a, and eps by a^2, which no configuration records
    norm multiplier   its gain and bias times m
    unit rows         each row divided by its length

Trained weights that were taken over with `initialize=False` had their eps widened by a^2, so every such site goes back
by the last matrix and eps. All of it is exact; what has no exact form is refused.
"""

import copy
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deepnet.adapt.convert import eps_name
from deepnet.adapt.install import ClosingResidual
from deepnet.adapt.state import SchemeState
from deepnet.anatomy.base import Anatomy, FoundSite, FoundStack, Weight, stock_class
from deepnet.anatomy.locate import is_huggingface, locate
from deepnet.anatomy.rows import UnitRows, at_unit_length, distinct_rows
from deepnet.errors import ExportError
from deepnet.folding.factors import divide_readers, has_gain, scale_norm, scale_rows
from deepnet.folding.placement import is_one
from deepnet.schemes.base import Constant
from deepnet.transformer.norms import ScaledNorm
from deepnet.transformer.residual import Residual
from deepnet.transformer.scales import value


@torch.no_grad()
def folded(model: nn.Module) -> nn.Module:
    """Return a stock copy of an adopted model with the scheme folded into its weights, in evaluation mode.

    Raises ExportError where the stock layers cannot compute what the scheme does.
    """
    device = next(model.parameters()).device
    stock = copy.deepcopy(model).cpu().eval()
    anatomy = locate(stock)
    state = _state(stock)
    _fold_rows(anatomy)
    for stack in anatomy.stacks:
        for found in stack.sites:
            _check(found)
    for stack in anatomy.stacks:
        _fold_stack(stack, anatomy, by_eps=state.kept)
    for found in anatomy.sites():
        _put_back(found)
    for owner in {found.part.owner for found in anatomy.sites()}:
        owner.__class__ = stock_class(type(owner))
        del owner.sites
    del stock.deepnet
    if is_huggingface(stock):
        configured: Any = stock
        del configured.config.deepnet
    return stock.to(device)


def save_folded(model: nn.Module, path: str | Path) -> None:
    """Write an adopted Hugging Face model folded, for its stock class to load.

    Raises ExportError where the folded model needs an eps that the stock class would not give it.
    """
    if not is_huggingface(model):
        raise ExportError(
            f"{type(model).__name__} has no format of its own; use folded(model) and save its state_dict"
        )
    stock: Any = folded(model)
    with torch.device("meta"):
        reference = type(stock)(stock.config)
    expected = dict(reference.named_modules())
    for name, module in stock.named_modules():
        is_norm = "norm" in type(module).__name__.lower()
        # what was multiplied by a^2 and divided again may be off in the last bit
        if is_norm and not math.isclose(_eps(module), _eps(expected[name]), rel_tol=1e-12):
            raise ExportError(
                f"{name} needs eps {_eps(module):.3g}, but {type(stock).__name__} would load it with "
                f"{_eps(expected[name]):.3g} and compute something else: the stream enters the first site from "
                "fixed positions that cannot be scaled. Use folded(model) in memory, or save_pretrained and "
                "deepnet.from_pretrained"
            )
    stock.save_pretrained(path)


def _eps(norm: nn.Module) -> float:
    eps: float = vars(norm)[eps_name(norm)]
    return eps


def _state(model: nn.Module) -> SchemeState:
    states = [module for module in model.modules() if isinstance(module, SchemeState)]
    if len(states) != 1:
        raise ExportError(
            f"{type(model).__name__} carries no scheme; expected one of apply_scheme's"
        )
    return states[0]


def _check(found: FoundSite) -> None:
    """Raise ExportError unless a stock site of that model can compute what the site does."""
    residual = _residual(found)
    plan, placement = residual.plan, found.part.placement
    here, other = (plan.post, plan.pre) if placement == "post" else (plan.pre, plan.post)
    extra = plan.out is not None or plan.skip_from != "raw" or bool(plan.shifts)
    if here is None or other is not None or extra or isinstance(residual, ClosingResidual):
        raise ExportError(
            f"a stock site of this model has one {placement}-norm and nothing else; the scheme computes "
            "something that its weights cannot express"
        )
    if placement == "pre" and not is_one(value(residual.skip)):
        raise ExportError("a scaled skip of a pre-norm site has no exact stock form")


def _residual(found: FoundSite) -> Residual:
    residual = found.residual
    assert residual is not None
    return residual


# The rewriting ------------------------------------------------------------------------------------------------------


def _fold_rows(anatomy: Anatomy) -> None:
    """Write rows as long as they are used, each parameter once, and put the stock classes back."""
    unit = [use for use in anatomy.rows() if isinstance(use.module, UnitRows)]
    for use in distinct_rows(unit):
        use.weight.copy_(at_unit_length(use.weight))
    for use in unit:
        use.module.__class__ = stock_class(use.unit, UnitRows)


def _fold_stack(stack: FoundStack, anatomy: Anatomy, *, by_eps: bool) -> None:
    producer = stack.entry_norm
    for found in stack.sites:
        residual = _residual(found)
        last = found.part.weights[-1]
        scale_rows(last, value(residual.branch_scale))
        skip = value(residual.skip)
        if not is_one(skip):
            if by_eps and isinstance(residual.plan.skip, Constant):
                _into_eps(last, residual, skip)
            elif producer is not None and has_gain(producer):
                _into_producer(found, producer, skip)
            elif producer is None and stack.entry:
                _into_embeddings(found, stack, anatomy, skip)
            else:
                _into_eps(last, residual, skip)
        producer = residual.post


def _into_producer(found: FoundSite, producer: nn.Module, skip: Tensor) -> None:
    scale_norm(producer, skip)
    divide_readers(found.part.weights, found.site.kind, skip)


def _into_embeddings(found: FoundSite, stack: FoundStack, anatomy: Anatomy, skip: Tensor) -> None:
    """Scale the embeddings; a vocabulary that shares their rows is answered by the last norm."""
    for table in stack.entry:
        table.mul_(skip)
    divide_readers(found.part.weights, found.site.kind, skip)
    if any(table is anatomy.vocabulary for table in stack.entry):
        last = _residual(stack.sites[-1]).post
        assert last is not None
        scale_norm(last, 1.0 / skip)


def _into_eps(last: Weight, residual: Residual, skip: Tensor) -> None:
    if skip.numel() > 1:
        raise ExportError("a skip with a number per channel has no stock form at this site")
    scale_rows(last, 1.0 / skip)
    norm = residual.post
    assert norm is not None
    name = eps_name(norm)
    setattr(norm, name, vars(norm)[name] / float(skip) ** 2)


def _put_back(found: FoundSite) -> None:
    """Put the site's norm where the stock one was."""
    residual, part = _residual(found), found.part
    norm = residual.post if part.placement == "post" else residual.pre
    if isinstance(norm, ScaledNorm):
        scale_norm(norm.norm, norm.factor)
        norm = norm.norm
    path, _, name = part.norm.rpartition(".")
    part.owner.get_submodule(path)._modules[name] = norm
