"""One row per scheme: its equation as a plain expression, and coefficients with their source."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

Norm = Callable[[Tensor], Tensor]
Branch = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    update: Callable[[Tensor, Branch, Norm], Tensor]
    """x, f, LN -> x, for the decoder of a 2-2 encoder-decoder."""
    coefficients: dict[tuple[int, int], tuple[float | None, float | None]]
    """(N, M) -> (alpha, beta) of the decoder, None where not constant."""


def _deepnorm_alpha(layers: int) -> float:
    return (3 * layers) ** 0.25


def _deepnorm_beta(layers: int) -> float:
    return (12 * layers) ** -0.25


CASES = [
    Case(
        name="post_ln",  # arXiv 1706.03762, section 3.1
        update=lambda x, f, ln: ln(x + f(x)),
        coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
    ),
    Case(
        name="pre_ln",  # arXiv 2002.04745, figure 1b
        update=lambda x, f, ln: x + f(ln(x)),
        coefficients={(6, 6): (1.0, 1.0), (100, 100): (1.0, 1.0)},
    ),
    Case(
        name="post_ln_init",  # arXiv 2203.00555, section 3
        update=lambda x, f, ln: ln(x + f(x)),
        coefficients={(6, 6): (1.0, None), (100, 100): (1.0, None)},
    ),
    Case(
        name="deepnorm",  # arXiv 2203.00555, figure 2
        update=lambda x, f, ln: ln(_deepnorm_alpha(2) * x + f(x)),
        coefficients={
            (6, 6): (18**0.25, 72**-0.25),
            (100, 100): (300**0.25, 1200**-0.25),
        },
    ),
    Case(
        name="branchnorm",  # arXiv 2305.02790, equation 7, after 1,000 of 4,000 updates
        update=lambda x, f, ln: ln(x + 0.25 * f(x)),
        coefficients={(6, 6): (1.0, 72**-0.25), (100, 100): (1.0, 1200**-0.25)},
    ),
]
