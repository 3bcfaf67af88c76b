"""The one function torchscale imports from timm: stochastic depth (never active in the benchmarks)."""

from torch import Tensor


def drop_path(branch: Tensor, drop_prob: float = 0.0, training: bool = False) -> Tensor:
    """Zero whole samples of `branch` with probability `drop_prob`, rescaling those that stay."""
    if drop_prob == 0.0 or not training:
        return branch
    shape = (branch.shape[0],) + (1,) * (branch.ndim - 1)
    keep = branch.new_empty(shape).bernoulli_(1.0 - drop_prob)
    return branch * keep / (1.0 - drop_prob)
