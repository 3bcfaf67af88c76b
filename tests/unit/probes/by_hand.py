"""Forward passes written out in plain tensor operations, which keep every number that the probes claim to read."""

import math
from collections import defaultdict
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from deepnet.probes.place import Place

Readings = dict[str, dict[Place, float]]
Linear = Callable[[Tensor], Tensor]


def rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def lengths(u: Tensor, real: Tensor | None = None) -> tuple[float, float]:
    """Lengths of the mean token, once per token, and of what varies around it, summed over the sentences."""
    mean = varying = 0.0
    for number, sentence in enumerate(u):
        tokens = sentence if real is None else sentence[real[number]]
        middle = tokens.mean(0).expand_as(tokens)
        mean += float(middle.square().sum().sqrt())
        varying += float((tokens - middle).square().sum().sqrt())
    return mean, varying


def entropy(weights: Tensor, real: Tensor | None = None) -> float:
    """Mean over heads and real queries of -sum w ln w, for weights [B, H, T, C]; no weight may be 0."""
    per_query = -(weights * weights.clamp_min(1e-300).log()).sum(-1)
    if real is None:
        return float(per_query.mean())
    return float(per_query.transpose(1, 2)[real].mean())


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int, keep: Tensor | None):
    """Return the mixed values [B, T, D] and the weights [B, H, T, C]."""
    split = [x.unflatten(2, (heads, -1)).transpose(1, 2) for x in (q, k, v)]
    scores = split[0] @ split[1].transpose(2, 3) / math.sqrt(split[0].shape[3])
    if keep is not None:
        scores = scores.masked_fill(~keep, -math.inf)
    weights = scores.softmax(3)
    return (weights @ split[2]).transpose(1, 2).flatten(2), weights


def stack(
    x: Tensor,
    layers: list[dict],
    *,
    name: str,
    heads: int,
    activation: Linear,
    post: bool,
    alpha: float = 1.0,
    keep: Tensor | None = None,
    real: Tensor | None = None,
) -> tuple[Tensor, Readings]:
    """Run layers of self-attention and feed-forward, each {"q": Linear, ..., "self_norm": ..., "ffn_norm": ...}."""
    found: Readings = defaultdict(dict)
    last = None
    for number, layer in enumerate(layers, start=1):
        for kind in ("self", "ffn"):
            place = Place(name, number, kind)
            entered = x if post else layer[f"{kind}_norm"](x)
            if kind == "self":
                mixed, weights = attention(
                    layer["q"](entered), layer["k"](entered), layer["v"](entered), heads, keep
                )
                y = layer["out"](mixed)
                found["attention_entropy"][place] = entropy(weights, real)
            else:
                inside = activation(layer["fc1"](entered))
                y = layer["fc2"](inside)
                found["sparsity"][place] = float((inside != 0).double().mean())
            total = alpha * x + y
            mean, varying = lengths(y, real)
            found["token_mean_energy"] |= {
                place: mean / varying,
                place._replace(role="varying"): varying / lengths(alpha * x, real)[1],
            }
            found["branch_ratio"][place] = rms(y) / rms(alpha * x)
            found["norm_input"][place] = rms(total if post else x)
            x = layer[f"{kind}_norm"](total) if post else total
        if last is not None:
            found["similarity"][Place(name, number)] = float(
                F.cosine_similarity(last, x, -1).mean()
            )
        mean, varying = lengths(x, real)
        found["token_mean_energy"][Place(name, number)] = mean / varying
        last = x
    return x, found


def linear(module: torch.nn.Module) -> Linear:
    return lambda x: x @ module.weight.T + (0 if module.bias is None else module.bias)


def layer_norm(module: torch.nn.Module) -> Linear:
    def norm(x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        return centred / (variance + module.eps).sqrt() * module.weight + module.bias

    return norm
