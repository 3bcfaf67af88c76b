"""The gradient on its way down a post-norm stack, taken apart site by site and measured.

For a site x_{l+1} = LN(y_l), y_l = s * x_l + a * f(x_l), the chain rule gives

    dL/dx_l = dL/dx_L * product over k of dLN(y_k)/dy_k * (s + a * df(x_k)/dx_k)

that is: what the loss sends back, the norms' factors, and the residual factors, which are 1 + df/dx in Post-LN,
alpha + df/dx in DeepNorm and 1 + a_t df/dx in BranchNorm. BranchNorm starts at a_0 = 0, where y is already normalised
and every factor is 1. Each factor is measured in the direction the gradient really takes, so their product is exact;
the norm's is set beside the estimate sqrt(d) / |y|.

Source: Liu et al., BranchNorm, arXiv 2305.02790, equations 4 to 9, which take the gradient apart so; the terms here are
derived from the scheme's definition by the chain rule.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from deepnet.schemes.base import Site
from deepnet.theory.jacobian import expected_norms
from deepnet.theory.live_model import post_norm_sites
from deepnet.transformer.layers import Sublayer
from deepnet.transformer.models import Transformer
from deepnet.transformer.scales import scaled


@dataclass(frozen=True, kw_only=True)
class GradientTerms:
    """The factors by which one site changes the norm of the gradient that passes it."""

    site: Site
    arriving: float
    """||dL/dx_{l+1}||, before this site."""
    norm: float
    """||dL/dy_l|| over what arrives: the norm's factor."""
    norm_estimate: float
    """Mean of sqrt(d) / |y_l| over the positions: what the norm's factor should be."""
    skip: float
    """||s * dL/dy_l|| over ||dL/dy_l||: the residual factor without its branch."""
    branch: float
    """||a * df/dx applied to dL/dy_l|| over ||dL/dy_l||: the branch's part of the residual factor."""
    residual: float
    """||dL/dx_l|| over ||dL/dy_l||: the residual factor."""
    weights: float
    """Norm of the gradient of all the branch's matrices and biases: of all passes together, where layers are looped."""

    @property
    def leaving(self) -> float:
        """Return ||dL/dx_l||, after this site: the product of the three."""
        return self.arriving * self.norm * self.residual


@dataclass
class _Passage:
    """One call of a site: its tensors x_l, y_l and x_{l+1}, the first of which it begins with."""

    site: Sublayer
    tensors: list[Tensor]


def gradient_terms(model: Transformer, loss: Callable[[], Tensor]) -> list[GradientTerms]:
    """Return the factors of every site, the encoder's first, in the order of the stream; no gradient is left behind.

    `loss` runs the model once, without recomputation, and returns a scalar. A site of looped layers has a row per pass.
    """
    sites = [site for stack in model.stacks() for site in post_norm_sites(stack)]
    with _watching(sites) as passages:
        value = loss()
    tensors = [tensor for passage in passages for tensor in passage.tensors]
    weights = [parameter for site in sites for parameter in site.branch.parameters()]
    found = torch.autograd.grad(value, [*tensors, *weights], materialize_grads=True)
    streams, matrices = iter(found[: len(tensors)]), iter(found[len(tensors) :])
    norms = {site: _weights_norm(site, matrices) for site in sites}
    return [
        _terms(passage, [next(streams) for _ in range(3)], norms[passage.site])
        for passage in passages
    ]


@contextmanager
def _watching(sites: list[Sublayer]) -> Iterator[list[_Passage]]:
    """Record what passes each site while this is open, in the order in which the sites run."""
    passages: list[_Passage] = []

    def keep_norm(module: nn.Module, args: Any, output: Tensor) -> None:
        passages[-1].tensors.extend((args[0], output))

    with ExitStack() as hooks:
        for site in sites:
            post = site.residual.post
            assert post is not None
            begins = partial(_begin, passages, site)
            hooks.callback(site.residual.register_forward_pre_hook(begins).remove)
            hooks.callback(post.register_forward_hook(keep_norm).remove)
        yield passages


def _begin(passages: list[_Passage], site: Sublayer, module: nn.Module, args: Any) -> None:
    passages.append(_Passage(site, [args[0]]))


def _weights_norm(site: Sublayer, gradients: Iterator[Tensor]) -> float:
    """Return the norm of the next gradients, as many as the branch has parameters."""
    own = [next(gradients).norm() for _ in site.branch.parameters()]
    return float(torch.stack(own).norm())


def _terms(passage: _Passage, gradients: list[Tensor], weights: float) -> GradientTerms:
    below, summed, above = gradients
    residual, (_, y, _) = passage.site.residual, passage.tensors
    through_skip = scaled(summed, residual.skip).detach()
    return GradientTerms(
        site=residual.site,
        arriving=float(above.norm()),
        norm=_ratio(summed, above),
        norm_estimate=float(expected_norms(y).mean()),
        skip=_ratio(through_skip, summed),
        branch=_ratio(below - through_skip, summed),
        residual=_ratio(below, summed),
        weights=weights,
    )


def _ratio(part: Tensor, whole: Tensor) -> float:
    """Return ||part|| / ||whole||, 0 where nothing arrives."""
    length = float(whole.norm())
    return float(part.norm()) / length if length else 0.0
