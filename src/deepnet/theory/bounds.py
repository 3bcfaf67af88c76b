"""How far an update of the weights moves a post-norm Transformer's output: DeepNet's Lemma 4.1, Theorems 4.2 and 4.3.

A site computes LN(alpha * x + f(x)); f multiplies two matrices of gains v and w (v and out of an attention, fc1 and fc2
of a feed-forward), where gain 1 is Glorot's. With `slope` = sqrt(v^2 + w^2) / alpha, `passed_on` = v * w / alpha and
`step` = ||theta* - theta|| of the site's two matrices:

    Theorem 4.2   ||dF|| <= sum over the sites of slope * step
    Theorem 4.3   ||dF|| <= sum over cross-attentions of passed_on * (the encoder's sum) + the decoder's sum

These are the forms the paper prints. They are statements of magnitude, derived for width 1, v * w much smaller than
alpha, and the derivative of a site's output by its input taken as 1. At width 1 that derivative is
(alpha + v w) / sqrt(alpha^2 + v^2 w^2), sqrt(2) for Post-LN, so that for Post-LN the printed form is an estimate and no
bound. A branch scaled by a beside an unscaled skip is alpha = 1 / a (BranchNorm).

Source: Wang et al., DeepNet, arXiv 2203.00555, section 4.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deepnet.errors import ConfigError
from deepnet.schemes.base import Branch


@dataclass(frozen=True, kw_only=True)
class SiteScales:
    """The gains of a branch's two matrices and the skip's scale per unit of the branch's (infinite: no branch)."""

    kind: Branch
    v: float
    w: float
    alpha: float

    @property
    def slope(self) -> float:
        """Return how far the site's output moves per unit of change in its two matrices."""
        return math.hypot(self.v, self.w) / self.alpha

    @property
    def passed_on(self) -> float:
        """Return how much of a change in what the branch reads reaches the site's output."""
        return self.v * self.w / self.alpha


def stack_update(sites: Sequence[SiteScales], steps: Sequence[float]) -> float:
    """Return Theorem 4.2's sum for one stack, from each site's ||theta* - theta||."""
    if len(sites) != len(steps):
        raise ConfigError(f"{len(sites)} sites but {len(steps)} steps; expected one step per site")
    return math.fsum(site.slope * step for site, step in zip(sites, steps, strict=True))


def encoder_decoder_update(
    encoder: Sequence[SiteScales],
    decoder: Sequence[SiteScales],
    *,
    encoder_steps: Sequence[float],
    decoder_steps: Sequence[float],
) -> float:
    """Return Theorem 4.3's sum, from each site's ||theta* - theta||."""
    through = memory_passed_on(decoder) * stack_update(encoder, encoder_steps)
    return through + stack_update(decoder, decoder_steps)


def memory_passed_on(decoder: Sequence[SiteScales]) -> float:
    """Return how much of a change of the encoder's output reaches the decoder's, over all its cross-attentions."""
    return math.fsum(site.passed_on for site in decoder if site.kind in ("cross", "merged"))


def sgd_steps(sites: Sequence[SiteScales], *, lr: float = 1.0) -> list[float]:
    """Return ||theta* - theta|| per site after SGD's first update, where the loss moves at most as fast as the output.

    As in the paper (section 4.3), no site's gradient exceeds the last one's, whose norm is its slope.
    """
    return [lr * sites[-1].slope] * len(sites)


def attention_magnitude(scores: Tensor, rows: Tensor) -> float:
    """Return the magnitude of softmax(scores) rows relative to that of the rows: Lemma 4.1 says of order 1.

    `scores` is [T, C], `rows` [C, D]. No weights can make it exceed the longest row. It has no such floor: for
    independent rows it is sqrt(sum of squared weights), down to C^(-1/2), and rows that cancel leave nothing.
    """
    mixed = torch.softmax(scores, dim=-1) @ rows
    return float(root_mean_square(mixed) / root_mean_square(rows))


def root_mean_square(x: Tensor) -> Tensor:
    """Return the root of the mean of squares over all elements, in float64."""
    return x.detach().double().square().mean().sqrt()
