"""The theorems' quantities read off a model's own weights: v, w and alpha of every post-norm site, and its steps."""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deepnet.errors import ConfigError
from deepnet.schemes.base import Stream
from deepnet.theory.bounds import (
    SiteScales,
    encoder_decoder_update,
    root_mean_square,
    stack_update,
)
from deepnet.transformer.attention import Attention
from deepnet.transformer.grouped_query import full_matrix
from deepnet.transformer.layers import Sublayer
from deepnet.transformer.models import Transformer
from deepnet.transformer.scales import value
from deepnet.transformer.stacks import Stack


class BranchMatrices(NamedTuple):
    """The two matrices of a branch whose product scales it; q, k and a gate are not among them."""

    v: Tensor
    w: Tensor


def post_norm_sites(stack: Stack) -> list[Sublayer]:
    """Return the sites of a stack in order; raises ConfigError where the theorems do not apply."""
    sites = stack.sites()
    plans = [site.residual.plan for site in sites]
    ordinary = all(p.post is not None and p.pre is None and p.out is None for p in plans)
    if not ordinary or type(stack.stream) is not Stream:
        raise ConfigError(
            f"the {stack.name} is not made of sites LN(alpha * x + f(x)), which is all that the theory treats"
        )
    return sites


def branch_matrices(site: Sublayer) -> BranchMatrices:
    """Return v, the full matrix, and out of an attention, fc1 and fc2 of a feed-forward, by their roles."""
    branch, roles = site.branch, site.branch.roles()
    if not isinstance(branch, Attention):
        return BranchMatrices(roles["fc1"].weight, roles["fc2"].weight)
    v = full_matrix(roles["v"].weight, num_heads=branch.num_heads, head_size=branch.head_size)
    return BranchMatrices(v, roles["out"].weight)


def site_scales(stack: Stack) -> list[SiteScales]:
    """Return the measured v, w and alpha of each site that runs: of a looped stack, those of every pass."""
    return [_measure(site) for site in post_norm_sites(stack)] * stack.loops


def gain(weight: Tensor) -> float:
    """Return the root mean square of a matrix [fan_out, fan_in] in units of Glorot's standard deviation."""
    return float(root_mean_square(weight)) / math.sqrt(2.0 / sum(weight.shape))


def copy_matrices(model: Transformer) -> dict[str, list[BranchMatrices]]:
    """Return a copy of every site's two matrices by stack, to compare later ones with."""
    return {
        stack.name: [
            BranchMatrices(*(m.detach().clone() for m in branch_matrices(site)))
            for site in post_norm_sites(stack)
        ]
        for stack in model.stacks()
    }


def site_steps(before: Sequence[BranchMatrices], after: Sequence[BranchMatrices]) -> list[float]:
    """Return ||theta* - theta||, Euclidean over both matrices, of each site."""
    return [
        float(torch.stack([_distance(*matrices) for matrices in zip(*pair, strict=True)]).norm())
        for pair in zip(before, after, strict=True)
    ]


def predicted_update(model: Transformer, before: dict[str, list[BranchMatrices]]) -> float:
    """Return Theorem 4.2's or 4.3's update of the last stack's output since `before`, by the present v, w and alpha.

    The theorems treat width 1. For any width, this predicts the root mean square over the output's elements. `before`
    may lie on another device. A looped stack counts as one of all the layers that run, which move together.
    """
    steps = {
        stack.name: site_steps(
            before[stack.name], [branch_matrices(site) for site in post_norm_sites(stack)]
        )
        * stack.loops
        for stack in model.stacks()
    }
    scales = {stack.name: site_scales(stack) for stack in model.stacks()}
    if len(scales) == 1:
        (name,) = scales
        return stack_update(scales[name], steps[name])
    return encoder_decoder_update(
        scales["encoder"],
        scales["decoder"],
        encoder_steps=steps["encoder"],
        decoder_steps=steps["decoder"],
    )


def attention_magnitudes(model: Transformer, forward: Callable[[], Any]) -> list[float]:
    """Return Lemma 4.1's quantity in every attention: magnitude of the mixed values over that of the values.

    Raises ConfigError where a scheme makes other values than those that are projected.
    """
    if any(site.residual.plan.values != "own" for site in model.sites()):
        raise ConfigError(
            "attention reads other values here than it projects, and Lemma 4.1 compares it with those it reads; take "
            "a model whose scheme leaves values alone"
        )
    magnitudes: list[float] = []
    values: dict[int, Tensor] = {}

    def keep_values(owner: Attention) -> Callable[..., None]:
        return lambda module, args, output: values.__setitem__(id(owner), output)

    def compare(owner: Attention) -> Callable[..., None]:
        return lambda module, args: magnitudes.append(
            float(root_mean_square(args[0]) / root_mean_square(values[id(owner)]))
        )

    with torch.no_grad(), ExitStack() as hooks:
        for attention in (m for m in model.modules() if isinstance(m, Attention)):
            assert attention.v is not None
            hooks.callback(attention.v.register_forward_hook(keep_values(attention)).remove)
            hooks.callback(attention.out.register_forward_pre_hook(compare(attention)).remove)
        forward()
    return magnitudes


def _distance(before: Tensor, after: Tensor) -> Tensor:
    length: Tensor = (after.detach() - before.to(after.device)).double().norm()
    return length


def _measure(site: Sublayer) -> SiteScales:
    matrices = branch_matrices(site)
    skip, branch = (
        float(root_mean_square(value(scale)))
        for scale in (site.residual.skip, site.residual.branch_scale)
    )
    return SiteScales(
        kind=site.kind,
        v=gain(matrices.v),
        w=gain(matrices.w),
        alpha=skip / branch if branch else float("inf"),
    )
