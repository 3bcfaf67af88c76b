"""The essay's magnitude of a matrix, W = lambda U with U as near to orthogonal as a scalar can make it.

    lambda = argmin ||W W^T / lambda^2 - I|| = ||W W^T|| / ||W||   (Frobenius norms),   dL/dlambda = <dL/dW, U>

The minimum over t = 1 / lambda^2 of t^2 tr(M^2) - 2 t tr(M), M = W W^T, is at t = tr(M) / tr(M^2). W and its transpose
have the same lambda. The essay takes lambda for Glorot's gain; of a Gaussian matrix [m, n] of that gain it is really
gain * sqrt(2 (m + n + 1) / (m + n)), sqrt(2) times as much, because its columns are not orthogonal.

Source: Su, kexue.fm/archives/8978, section "magnitude analysis".
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from deepnet.schemes.base import Role, StackName
from deepnet.transformer.models import Transformer


@dataclass(frozen=True, kw_only=True)
class RoleMagnitude:
    """One role's matrices in a stack: root mean squares over them of lambda, the probe and the gradient's norm."""

    stack: StackName
    role: Role
    count: int
    magnitude: float
    probe: float
    gradient: float


def magnitude(weight: Tensor) -> float:
    """Return lambda of a matrix, 0 for a zero matrix."""
    w = weight.detach().double()
    w = w if w.shape[0] <= w.shape[1] else w.T
    length = float(w.norm())
    return float((w @ w.T).norm()) / length if length else 0.0


def direction(weight: Tensor) -> Tensor:
    """Return U = W / lambda; a zero matrix has none and stays zero."""
    scale = magnitude(weight)
    return weight.detach() / scale if scale else weight.detach().clone()


def magnitude_gradient(weight: Tensor, gradient: Tensor) -> float:
    """Return the probe dL/dlambda = <dL/dW, U>."""
    return float((gradient * direction(weight)).sum())


def role_magnitudes(model: Transformer, loss: Callable[[], Tensor]) -> list[RoleMagnitude]:
    """Return magnitude, probe and gradient by stack and role; no gradient is left behind."""
    weights = list(model.role_weights())
    gradients = torch.autograd.grad(loss(), [w.parameter for w in weights], materialize_grads=True)
    pools: dict[tuple[StackName, Role], list[tuple[float, float, float]]] = {}
    for weight, gradient in zip(weights, gradients, strict=True):
        row = (
            magnitude(weight.parameter),
            magnitude_gradient(weight.parameter, gradient),
            float(gradient.norm()),
        )
        pools.setdefault((weight.stack, weight.role), []).append(row)
    return [_pool(stack, role, rows) for (stack, role), rows in pools.items()]


def _pool(stack: StackName, role: Role, rows: list[tuple[float, float, float]]) -> RoleMagnitude:
    size, probe, gradient = torch.tensor(rows, dtype=torch.float64).square().mean(0).sqrt().tolist()
    return RoleMagnitude(
        stack=stack, role=role, count=len(rows), magnitude=size, probe=probe, gradient=gradient
    )
