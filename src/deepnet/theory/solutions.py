"""The coefficients for which a bound does not grow with depth, found by bisection on the bound itself.

Nothing here knows the closed forms that the schemes use: for a trial alpha every site of the stack is written down and
the theorem's sum is taken over all of them.

DeepNet (arXiv 2203.00555, section 4.3) asks that an SGD update of size lr moves the output by lr, with v = w and
v^2 + w^2 = 1 / alpha^2. The decoder (or a single stack) answers for its own term of Theorem 4.3, the encoder for the
term that passes through the cross-attentions. In that term the encoder's step is taken as lr times its own slope,
without a second factor for the gradient's way back through the cross-attentions: the reading that gives 0.81 and 0.87.

The essay (Su, kexue.fm/archives/8978) asks the same of the loss, a gradient's magnitude being gain / alpha: SGD changes
it by gradient^2, Adam by the gradient, LAMB by gain * gradient per site.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from deepnet.schemes.base import Branch, OptimizerFamily
from deepnet.theory.bounds import SiteScales, memory_passed_on, sgd_steps, stack_update

_ENCODER: tuple[Branch, ...] = ("self", "ffn")
_DECODER: tuple[Branch, ...] = ("self", "cross", "ffn")


class Coefficients(NamedTuple):
    """The skip's scale and the gain of v, out, fc1 and fc2."""

    alpha: float
    beta: float


def solve_stack(layers: int) -> Coefficients:
    """Return DeepNet's coefficients of an encoder or decoder that stands alone."""
    return _solve(layers, _ENCODER)


def solve_encoder_decoder(encoder_layers: int, decoder_layers: int) -> dict[str, Coefficients]:
    """Return DeepNet's coefficients of both stacks."""
    decoder = _solve(decoder_layers, _DECODER)
    through = memory_passed_on(_sites(decoder.alpha, decoder_layers, _DECODER))
    return {"encoder": _solve(encoder_layers, _ENCODER, through=through), "decoder": decoder}


def solve_essay(layers: int, *, optimizer: OptimizerFamily) -> Coefficients:
    """Return the essay's coefficients of a single stack: beta = 1 / alpha, or alpha = 1 for LAMB."""
    if optimizer == "lamb":
        beta = _root(lambda b: essay_loss_change(layers, 1.0, b, optimizer=optimizer), rising=True)
        return Coefficients(1.0, beta)
    alpha = _root(
        lambda a: essay_loss_change(layers, a, 1.0 / a, optimizer=optimizer), rising=False
    )
    return Coefficients(alpha, 1.0 / alpha)


def essay_loss_change(
    layers: int, alpha: float, beta: float, *, optimizer: OptimizerFamily
) -> float:
    """Return the essay's magnitude of the first update's change of the loss, per unit of learning rate."""
    gradient = beta / alpha
    per_site = {"sgd": gradient**2, "adam": gradient, "lamb": beta * gradient}[optimizer]
    return 2 * layers * per_site


def _solve(layers: int, branches: tuple[Branch, ...], *, through: float = 1.0) -> Coefficients:
    """Return alpha and beta for which `through` times the stack's own update is 1 per unit of learning rate."""

    def update(alpha: float) -> float:
        sites = _sites(alpha, layers, branches)
        return through * stack_update(sites, sgd_steps(sites))

    alpha = _root(update, rising=False)
    return Coefficients(alpha, _symmetric_gain(alpha))


def _sites(alpha: float, layers: int, branches: tuple[Branch, ...]) -> list[SiteScales]:
    gain = _symmetric_gain(alpha)
    return [SiteScales(kind=kind, v=gain, w=gain, alpha=alpha) for kind in branches] * layers


def _symmetric_gain(alpha: float) -> float:
    """Return v = w for which v^2 + w^2 = 1 / alpha^2."""
    return math.sqrt(0.5) / alpha


def _root(function: Callable[[float], float], *, rising: bool) -> float:
    """Return where a monotone positive function is 1, by halving [2^-40, 2^40] down to neighbouring floats."""
    low, high = 2.0**-40, 2.0**40
    while True:
        middle = math.sqrt(low * high)
        if not low < middle < high:
            return middle
        if (function(middle) < 1.0) == rising:
            low = middle
        else:
            high = middle
