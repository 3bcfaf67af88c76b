"""What is read of a model on fixed sentences, without dropout, as it starts and after some of its updates.

A measure is made of a model with its first weights; it is then asked as often as one likes, and changes nothing.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from deepnet.data.loader import Batch
from deepnet.probes.gradient_norm import GradientNorm
from deepnet.probes.listening import ForwardProbe
from deepnet.probes.model_update import ModelUpdate, evaluating
from deepnet.probes.norm_input import NormInput
from deepnet.probes.place import by_layer, rounded
from deepnet.probes.similarity import Similarity
from deepnet.probes.sparsity import Sparsity
from deepnet.training.loss import token_loss
from deepnet.transformer.models import Transformer

Readings = dict[str, Any]
"""Numbers by name, those of layers by what they are of; None what is not finite."""
Measure = Callable[[Transformer, Batch], Callable[[], Readings]]
"""(a model as it starts, sentences) -> what reads it, now and later."""


def output_update(model: Transformer, batch: Batch) -> Callable[[], Readings]:
    """Read ||F(x, theta_i) - F(x, theta_0)|| of the last stack's output ("update") and of the logits ("logit_update").

    Root mean square over the elements, so that neither width nor batch is in it: the norms of the paper divided by the
    root of their number. Source: Wang et al., DeepNet, arXiv 2203.00555, section 3.
    """
    last = model.stacks()[-1].name
    probe = ModelUpdate(model, (batch.source, batch.source_keep, batch.target_in), layers=[last])

    def read() -> Readings:
        moved = probe.measure()
        return {"update": rounded(moved[last].rms), "logit_update": rounded(moved[""].rms)}

    return read


def held_out_loss(model: Transformer, batch: Batch) -> Callable[[], Readings]:
    """Read the loss on the sentences in nats per target token, without label smoothing ("loss")."""

    @torch.no_grad()
    def read() -> Readings:
        with evaluating(model):
            return {"loss": _finite(_loss(model, batch).item())}

    return read


def gradient_norms(model: Transformer, batch: Batch) -> Callable[[], Readings]:
    """Read the norm of the gradient of the loss on the sentences: of all weights ("gradient"), and of each layer's
    matrices ("layer_gradient", by stack).
    """
    probe = GradientNorm(model)

    def read() -> Readings:
        with evaluating(model), _gradients_put_back(model):
            _loss(model, batch).backward()  # type: ignore[no-untyped-call]
            norms = probe.readings()
        layers: dict[str, list[float]] = {
            stack.name: [0.0] * len(stack.layers) for stack in model.stacks()
        }
        for place, norm in norms.items():
            if place.layer and place.role not in ("norm", "bias"):
                layers[place.stack][place.layer - 1] += norm**2
        whole = sum(norm**2 for norm in norms.values()) ** 0.5
        by_stack = {name: [rounded(square**0.5) for square in row] for name, row in layers.items()}
        return {"gradient": _finite(whole), "layer_gradient": by_stack}

    return read


def norm_inputs(model: Transformer, batch: Batch) -> Callable[[], Readings]:
    """Read the root mean square of what enters each norm ("norm_input", by stack and site, a number per layer)."""
    num_layers: Mapping[str, int] = {stack.name: len(stack.layers) for stack in model.stacks()}

    @torch.no_grad()
    def read() -> Readings:
        with evaluating(model), NormInput(model) as probe:
            model(batch.source, batch.source_keep, batch.target_in)
        return {"norm_input": by_layer(probe.readings(), num_layers=num_layers)}

    return read


def layer_similarity(model: Transformer, batch: Batch) -> Callable[[], Readings]:
    """Read how alike the last stack's layers are: the mean over them of the cosine of adjacent outputs ("similarity").

    Source: Liu et al., BranchNorm, arXiv 2305.02790, the analysis of redundant parameters.
    """
    last = model.stacks()[-1].name
    return _mean_of(Similarity, model, batch, name="similarity", stacks=[last])


def active_share(model: Transformer, batch: Batch) -> Callable[[], Readings]:
    """Read the share of activations that are not zero, the mean over all feed-forwards ("active").

    Source: Liu et al., BranchNorm, arXiv 2305.02790, the analysis of redundant parameters.
    """
    stacks = [stack.name for stack in model.stacks()]
    return _mean_of(Sparsity, model, batch, name="active", stacks=stacks)


def _mean_of(
    probe: type[ForwardProbe], model: Transformer, batch: Batch, *, name: str, stacks: Sequence[str]
) -> Callable[[], Readings]:
    """Return what reads the mean of a probe's readings over the layers of some stacks."""

    @torch.no_grad()
    def read() -> Readings:
        with evaluating(model), probe(model) as found:
            model(batch.source, batch.source_keep, batch.target_in)
        of_stacks = [value for place, value in found.readings().items() if place.stack in stacks]
        return {name: _finite(statistics.fmean(of_stacks))}

    return read


def _loss(model: Transformer, batch: Batch) -> Tensor:
    loss: Tensor = token_loss(label_smoothing=0.0)(model, batch) / batch.num_tokens
    return loss


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


@contextmanager
def _gradients_put_back(model: Transformer) -> Iterator[None]:
    """Give the parameters no gradients meanwhile, and afterwards those that they had."""
    held = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in held:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in held:
            parameter.grad = gradient
