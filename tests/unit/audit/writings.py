"""Other ways of writing a model of ours that leave what it computes as it is, each a change made in place.

Every writing returns whether it says anything of the model: some need a norm after the site, others none.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from deepnet.schemes.base import Constant, Stream
from deepnet.transformer.layers import Sublayer
from deepnet.transformer.models import Transformer
from deepnet.transformer.norms import ScaledNorm
from deepnet.transformer.scales import FixedScale

Writing = Callable[[Transformer], bool]
FACTOR = 3.0


def as_planned(model: Transformer) -> bool:
    """As it is."""
    return True


# A common factor before a norm ----------------------------------------------------------------------------------------


def common_factor(model: Transformer, factor_of: Callable[[float, float], float]) -> bool:
    """Multiply skip and branch of every site that a norm follows by one factor, and that norm's eps by its square."""
    changed = False
    for sublayer in model.sites():
        site, plan = sublayer.residual, sublayer.residual.plan
        constants = isinstance(plan.skip, Constant) and isinstance(plan.branch_scale, Constant)
        if plan.post is None or not constants or not _is_ordinary(model):
            continue
        factor = factor_of(plan.skip.value, plan.branch_scale.value)
        site.skip = FixedScale(factor * plan.skip.value)
        site.branch = FixedScale(factor * plan.branch_scale.value)
        _scale_eps(site.post, factor)
        changed = True
    return changed


def scale_on_the_branch(model: Transformer) -> bool:
    """LN(x + f(x) / alpha)."""
    return common_factor(model, lambda skip, branch: 1 / skip)


def scale_on_both(model: Transformer) -> bool:
    """LN(3 alpha x + 3 f(x))."""
    return common_factor(model, lambda skip, branch: FACTOR)


def convex(model: Transformer) -> bool:
    """LN(alpha / (1 + alpha) x + f(x) / (1 + alpha))."""
    return common_factor(model, lambda skip, branch: 1 / (skip + branch))


def larger_stream(model: Transformer) -> bool:
    """A stream that only norms read, three times as large: rows, positions and branches, with nine times the eps."""
    plans = [sublayer.residual.plan for sublayer in model.sites()]
    is_read_by_norms = all(
        p.pre is not None and p.post is None and p.skip_from == "raw" for p in plans
    )
    constant = all(isinstance(p.branch_scale, Constant) for p in plans)
    has_final = all(stack.plan.ends.final is not None for stack in model.stacks())
    if not (is_read_by_norms and constant and has_final and _is_ordinary(model)):
        return False
    for stack in model.stacks():
        if stack.entry.norm is not None or not isinstance(stack.entry.multiplier, float):
            return False
        stack.entry.multiplier *= FACTOR
        stack.entry.positions.register_forward_hook(_times(FACTOR))
        _scale_eps(stack.ends.final, FACTOR)
    for sublayer in model.sites():
        branch = sublayer.residual.plan.branch_scale.value
        sublayer.residual.branch = FixedScale(FACTOR * branch)
        _scale_eps(sublayer.residual.pre, FACTOR)
    return True


# A factor moved from one place to another -----------------------------------------------------------------------------


@torch.no_grad()
def folded(model: Transformer) -> bool:
    """3 f(x), the matrix at the end of f a third, which says nothing of one that starts at 0."""
    if not all(_last(sublayer).weight.any() for sublayer in model.sites()):
        return False
    for sublayer in model.sites():
        last = _last(sublayer)
        last.register_forward_hook(_times(FACTOR))
        _multiply(last, 1 / FACTOR)
    return True


@torch.no_grad()
def alpha_in_the_last_matrix(model: Transformer) -> bool:
    """LN(x + f(x)), the matrix at the end of f divided by alpha."""
    changed = False
    for sublayer in model.sites():
        plan = sublayer.residual.plan
        skips = isinstance(plan.skip, Constant) and isinstance(plan.branch_scale, Constant)
        if plan.post is None or not skips or plan.skip.value == 1.0 or not _is_ordinary(model):
            continue
        sublayer.residual.skip, sublayer.residual.branch = FixedScale(1.0), FixedScale(1.0)
        _multiply(_last(sublayer), plan.branch_scale.value / plan.skip.value)
        _scale_eps(sublayer.residual.post, 1 / plan.skip.value)
        changed = True
    return changed


@torch.no_grad()
def first_for_last(model: Transformer) -> bool:
    """W_v and W_1 three times as large, W_out and W_2 a third: attention, ReLU and gates hand a factor on."""
    if any(_is_normed_inside(sublayer) for sublayer in model.sites()):
        return False
    if any(sublayer.residual.plan.values != "own" for sublayer in model.sites()):
        return False  # what is added to values would have to follow
    for sublayer in model.sites():
        _multiply(_first(sublayer), FACTOR)
        _multiply(_last(sublayer), 1 / FACTOR)
    return True


@torch.no_grad()
def queries_for_keys(model: Transformer) -> bool:
    """W_q three times as large, W_k a third."""
    for branch in _attentions(model):
        _multiply(branch.q, FACTOR)
        _multiply(branch.k, 1 / FACTOR)
    return not any(branch.q_norm or branch.k_norm for branch in _attentions(model))


@torch.no_grad()
def multiplier_in_the_queries(model: Transformer) -> bool:
    """softmax(q k) with 1 / sqrt(d_head) in W_q, as T5 has it."""
    for branch in _attentions(model):
        head = branch.q.out_features // branch.num_heads
        planned = branch.multiplier or head**-0.5
        branch.multiplier = 1.0
        _multiply(branch.q, planned)
    return not any(branch.q_norm for branch in _attentions(model))


@torch.no_grad()
def gain_of_the_norm_in_the_weights(model: Transformer) -> bool:
    """A norm before the branch with a gain of 3, what reads it a third."""
    found = False
    for sublayer in model.sites() if _is_ordinary(model) else ():
        norm = sublayer.residual.pre
        inner = norm.norm if isinstance(norm, ScaledNorm) else norm
        if not isinstance(inner, nn.LayerNorm) or sublayer.residual.plan.skip_from == "normed":
            continue
        inner.weight.mul_(FACTOR)
        own = (
            ("q", "fc1", "gate")
            if sublayer.residual.site.kind == "cross"
            else ("q", "k", "v", "fc1", "gate")
        )
        for name in own:
            if getattr(sublayer.branch, name, None) is not None:
                getattr(sublayer.branch, name).weight.mul_(1 / FACTOR)
        found = True
    return found


@torch.no_grad()
def before_a_norm(model: Transformer) -> bool:
    """Three times what a norm inside the branch or after it reads, with nine times its eps."""
    found = False
    for sublayer in model.sites():
        inner = {
            "q_norm": "q",
            "k_norm": "k",
            "v_norm": "v",
            "heads_norm": "v",
            "activation_norm": "fc1",
        }
        normed = [
            (getattr(sublayer.branch, norm), getattr(sublayer.branch, matrix))
            for norm, matrix in inner.items()
            if isinstance(getattr(sublayer.branch, norm, None), nn.LayerNorm)
        ]
        if isinstance(sublayer.residual.out, nn.LayerNorm):
            normed.append((sublayer.residual.out, _last(sublayer)))
        for norm, matrix in normed:
            _multiply(matrix, FACTOR)
            _scale_eps(norm, FACTOR)
            found = True
    return found


WRITINGS: tuple[Writing, ...] = (
    as_planned,
    scale_on_the_branch,
    scale_on_both,
    convex,
    larger_stream,
    folded,
    alpha_in_the_last_matrix,
    first_for_last,
    queries_for_keys,
    multiplier_in_the_queries,
    gain_of_the_norm_in_the_weights,
    before_a_norm,
)


# Hands ----------------------------------------------------------------------------------------------------------------


def _is_ordinary(model: Transformer) -> bool:
    """Return whether the scheme's stream is the ordinary one."""
    return all(type(stack.stream) is Stream for stack in model.stacks())


def _attentions(model: Transformer) -> list[nn.Module]:
    return [s.branch for s in model.sites() if hasattr(s.branch, "q")]


def _first(sublayer: Sublayer) -> nn.Linear:
    return sublayer.branch.v if hasattr(sublayer.branch, "v") else sublayer.branch.fc1


def _last(sublayer: Sublayer) -> nn.Linear:
    return sublayer.branch.out if hasattr(sublayer.branch, "out") else sublayer.branch.fc2


def _is_normed_inside(sublayer: Sublayer) -> bool:
    plan = sublayer.residual.plan
    return bool(plan.inner_norms.keys() & {"v", "heads", "activation"}) or bool(plan.shifts)


def _times(factor: float) -> Callable[[nn.Module, object, Tensor], Tensor]:
    return lambda module, inputs, output: factor * output


def _multiply(linear: nn.Linear, factor: float) -> None:
    linear.weight.mul_(factor)
    if linear.bias is not None:
        linear.bias.mul_(factor)


def _scale_eps(norm: nn.Module, factor: float) -> None:
    inner = norm.norm if isinstance(norm, ScaledNorm) else norm
    inner.eps *= factor**2
