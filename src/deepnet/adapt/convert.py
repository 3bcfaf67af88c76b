"""Trained weights taken over so that the model computes exactly what it did; refused where no form of it does.

Post-norm, the branch's last matrix times a / b; pre-norm, that and the norm's gain and bias divided by the norm's m:

    LN_eps(x + f(x)) = LN_(a^2 eps)(a*x + b*f'(x)),   f' = (a / b) f
    x + f(LN(x)) = x + b*f'(m*LN'(x)),   f' = f / b,   LN' = LN / m

Source: the scale invariance of LN; eps is what makes it exact rather than close.
"""

import torch
from torch import Tensor, nn

from deepnet.adapt.drawn import WeightChange, changed, spread
from deepnet.adapt.install import Installed
from deepnet.adapt.journal import Journal
from deepnet.errors import AdaptError
from deepnet.folding.factors import has_gain
from deepnet.schemes.base import Constant, Learned, Scale, Scheduled, SitePlan
from deepnet.transformer.norms import ScaledNorm
from deepnet.transformer.residual import Residual
from deepnet.transformer.scales import initial, value

_LONGEST = 2**40


def keep_function(
    one: Installed, paths: dict[nn.Module, str], journal: Journal
) -> list[WeightChange]:
    """Take over a site's norm and rescale the last matrix of its branch; raises AdaptError where that is not exact."""
    placement = one.found.part.placement
    # as they are in the site: a trained one is rounded to its type
    skip, branch = (float(value(s)[0]) for s in (one.residual.skip, one.residual.branch_scale))
    norm = one.residual.post if placement == "post" else one.residual.pre
    assert norm is not None
    take_over(norm, one.stock_norm)
    if skip == branch:
        return []
    return _rescale(one, skip / branch, paths, journal)


def check_same_function(plan: SitePlan, placement: str) -> None:
    """Raise AdaptError unless a site can compute what a stock one with its norm there does."""
    here, other = (plan.post, plan.pre) if placement == "post" else (plan.pre, plan.post)
    skip, branch = start_of(plan.skip), start_of(plan.branch_scale)
    reason = ""
    if here is None or other is not None or plan.out is not None:
        reason = f"its norms are not the model's, which has one {placement} the branch" + (
            "" if placement == "pre" else " and the addition"
        )
    elif plan.skip_from != "raw" or plan.shifts:
        reason = "its sites compute something else"
    elif placement == "post" and here.multiplier != 1.0:
        reason = "its norm after the addition is scaled"
    elif skip == 0.0 or branch == 0.0 or (placement == "pre" and skip != 1.0):
        reason = "it scales the skip or the branch in a way no weight can make up for"
    if reason:
        raise AdaptError(
            f"the scheme has no form that computes exactly what these weights do: {reason}. "
            "initialize=True draws new weights; post_ln, deepnorm, branchnorm keep a post-norm model's function, "
            "pre_ln and layernorm_scaling a pre-norm one's"
        )


def start_of(scale: Scale) -> float:
    """Return a scale as it is at the start, a scheduled one at its last step."""
    if isinstance(scale, Constant):
        return scale.value
    return initial(scale) if isinstance(scale, Learned) else scale.at(last_step(scale))


def last_step(scale: Scheduled) -> int:
    """Return the first step from which a scheduled scale stays 1; raises AdaptError where there is none."""
    if scale.at(_LONGEST) != 1.0:
        raise AdaptError("the scheme's schedule does not end at 1: it has no last step")
    low, high = -1, _LONGEST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if scale.at(middle) == 1.0 else (middle, high)
    return high


@torch.no_grad()
def take_over(norm: nn.Module, stock: nn.Module) -> None:
    """Give a planned norm the gain and bias of the one that was there, divided by its multiplier."""
    multiplier = 1.0
    if isinstance(norm, ScaledNorm):
        multiplier, norm = norm.value, norm.norm
    if type(norm) is not type(stock):
        raise AdaptError(
            f"the scheme's norm is a {type(norm).__name__}, the model's a {type(stock).__name__}: "
            "its gain and bias mean something else"
        )
    if multiplier != 1.0 and not has_gain(norm):
        raise AdaptError(
            f"the scheme multiplies what its norms return, and the model's {type(norm).__name__} has no gain to make "
            "up for it; initialize=True draws new weights"
        )
    norm.load_state_dict(stock.state_dict())
    for table in norm.parameters():
        table.div_(multiplier)


def widen_eps(residual: Residual) -> None:
    """Multiply the eps of the norm after the addition by skip^2, as its input is skip times as large as it was."""
    norm, skip = residual.post, start_of(residual.plan.skip)
    if norm is not None and skip != 1.0:
        name = eps_name(norm)
        setattr(norm, name, vars(norm)[name] * skip**2)


def eps_name(norm: nn.Module) -> str:
    """Return the attribute that holds a norm's eps."""
    return "eps" if "eps" in vars(norm) else "variance_epsilon"


@torch.no_grad()
def _rescale(
    one: Installed, factor: float, paths: dict[nn.Module, str], journal: Journal
) -> list[WeightChange]:
    weight = one.found.part.weights[-1]
    before = spread(weight.matrix())
    tensors: list[tuple[Tensor | None, Tensor | None]] = [
        (weight.parameter, weight.matrix()),
        (weight.bias_parameter, weight.bias()),
    ]
    for parameter, view in tensors:
        if parameter is not None and view is not None:
            journal.keep(parameter)
            view.mul_(factor)
    return [changed(one, weight, paths, before, None)]
