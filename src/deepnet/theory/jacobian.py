"""The Jacobian of a norm against sqrt(d) / |x|, by which a large input stops the gradient.

    ||dLN(x) / dx|| = O(sqrt(d) / |x|)

For a LayerNorm of unit gain and negligible eps the spectral norm is sqrt(d) / |x - mean(x)|: the estimate is exact for
inputs of mean zero and too small for others. A gain per channel is not in the estimate.

Source: Xiong et al., arXiv 2002.04745, lemma 3; used by DeepNet (arXiv 2203.00555, section 3).
"""

import math

import torch
from torch import Tensor, nn


def jacobian_norms(norm: nn.Module, x: Tensor) -> Tensor:
    """Return the spectral norm [...] of the Jacobian of `norm` at each vector of `x` [..., D]."""
    vectors = x.detach().reshape(-1, x.shape[-1])
    jacobians = torch.func.vmap(torch.func.jacrev(norm))(vectors)
    norms: Tensor = torch.linalg.matrix_norm(jacobians.detach(), ord=2)
    return norms.reshape(x.shape[:-1])


def expected_norms(x: Tensor) -> Tensor:
    """Return sqrt(d) / |x|, [...], at each vector of `x` [..., D]."""
    lengths: Tensor = torch.linalg.vector_norm(x.detach(), dim=-1)
    return math.sqrt(x.shape[-1]) / lengths
