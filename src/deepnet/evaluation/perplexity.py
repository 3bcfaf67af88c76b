"""How surprised a model is by text, as the number of equally likely tokens that would surprise it as much."""

import math


def perplexity(loss: float) -> float:
    """Return e to the power of a loss in nats per token; infinite where that is more than a float holds."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
