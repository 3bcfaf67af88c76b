"""How near a post-norm stack is to the identity: the essay's ground for taking every dL/dx and dx/dz as of order 1.

The identity of such a stack is its norms alone, x <- LN(s * x). A branch's share of the sum is gain^2 / alpha in the
essay's magnitudes.

Source: Su, kexue.fm/archives/8978, section "analysis after the fact".
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from deepnet.theory.bounds import root_mean_square
from deepnet.theory.live_model import post_norm_sites
from deepnet.transformer.layers import Sublayer
from deepnet.transformer.scales import scaled
from deepnet.transformer.stacks import Stack


@dataclass(frozen=True, kw_only=True)
class IdentityDistance:
    """How far a stack moves the stream from what its norms alone would make of it."""

    shares: tuple[float, ...]
    """Per site that runs: root mean square of a * f(x) over that of s * x."""
    distance: float
    """Root mean square of (output - first norm of the input) over that of the latter, for the whole stack."""


def identity_distance(stack: Stack, forward: Callable[[], Any]) -> IdentityDistance:
    """Return how near the stack is to the identity in `forward`, which runs it once."""
    shares: list[float] = []
    streams: list[Tensor] = []
    sites = post_norm_sites(stack)
    first, last = sites[0].residual, sites[-1].residual
    with torch.no_grad(), ExitStack() as hooks:
        for site in sites:
            hook = site.residual.register_forward_pre_hook(_share_of(site, shares))
            hooks.callback(hook.remove)
        hooks.callback(first.register_forward_pre_hook(_append_skip(streams)).remove)
        hooks.callback(last.register_forward_hook(_append_output(streams)).remove)
        forward()
        start, end = (
            streams[0],
            streams[-1],
        )  # between them those of other passes, where layers are looped
        assert first.post is not None
        alone = first.post(scaled(start, first.skip))
    distance = float(root_mean_square(end - alone) / root_mean_square(alone))
    return IdentityDistance(shares=tuple(shares), distance=distance)


def _share_of(site: Sublayer, shares: list[float]) -> Callable[[nn.Module, Any], None]:
    def append(module: nn.Module, args: Any) -> None:
        skip, y = args
        carried, added = scaled(skip, site.residual.skip), scaled(y, site.residual.branch_scale)
        shares.append(float(root_mean_square(added) / root_mean_square(carried)))

    return append


def _append_skip(streams: list[Tensor]) -> Callable[[nn.Module, Any], None]:
    return lambda module, args: streams.append(args[0])


def _append_output(streams: list[Tensor]) -> Callable[[nn.Module, Any, Tensor], None]:
    return lambda module, args, output: streams.append(output)
