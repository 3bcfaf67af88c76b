"""What a norm does to the size of what it norms, measured by norming it larger: its gain, and the eps in its root."""

import torch
from torch import Tensor

from deepnet.audit.flow import Flow
from deepnet.audit.sites import first_norms
from deepnet.audit.tape import Operation, Value

_LARGE = 1e6
"""How much larger a stream is made, so that no eps is felt."""


def norm_gain(flow: Flow, start: Value, end: Value) -> float:
    """Return the size (root mean square) that `end` has if `start` is large: a norm's gain and what multiplies it."""
    return float(_odd(flow, start, end, _LARGE).square().mean().sqrt())


def first_eps(flow: Flow, stream: Value) -> tuple[float, float] | None:
    """Return the eps of the first norm that reads a stream, in the stream's units, and the stream's mean variance.

    None where no norm reads it, or where the run's numbers are too coarse to tell.
    """
    operation = next(iter(first_norms(flow, stream)), None)
    if operation is None or stream.tensor.dtype != torch.float64:
        return None
    origin = flow.normed[operation]
    size = _square(_odd(flow, origin, operation.output, 1.0))
    unbounded = _square(_odd(flow, origin, operation.output, _LARGE))
    variance = _variance(flow, operation)
    eps = variance * (unbounded / size - 1)
    return float(eps.median()), float(variance.median())


def _odd(flow: Flow, start: Value, end: Value, factor: float) -> Tensor:
    """Return the part of `end` that changes its sign with `start`, which is made so much larger: without any bias."""
    plus, minus = (
        flow.tape.replay(start, sign * factor * start.tensor, end) for sign in (1.0, -1.0)
    )
    return (plus - minus) / 2


def _variance(flow: Flow, operation: Operation) -> Tensor:
    """Return what the norm takes the root of, less its eps: a variance where it takes the mean away, else a square."""
    origin = flow.normed[operation]
    shifted = flow.tape.replay(origin, origin.tensor + 1.0, operation.output)
    x = origin.tensor
    if torch.allclose(shifted, operation.output.tensor, rtol=1e-6, atol=1e-6):
        x = x - x.mean(-1, keepdim=True)
    return _square(x)


def _square(x: Tensor) -> Tensor:
    return x.square().mean(-1)
