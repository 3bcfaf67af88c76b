"""A trained model made deeper: new layers are copies of trained ones, silent at first where that changes nothing.

    stack        layers 1 2 3 become 1 2 3 1' 2' 3'
    interleave   layers 1 2 3 become 1 1' 2 2' 3 3'

Where a site that adds nothing hands its stream on as it is, the last matrix of each new branch, or the norm behind it,
is set to 0: the model computes what it did, and its new layers learn from the first update on, as the gradient of what
was set to 0 is not 0. Elsewhere new layers have the weights of their originals, and the function jumps.

Source: stack: Gong et al., Efficient Training of BERT by Progressively Stacking (ICML 2019); silent layers: Wang et
al., LEMON, arXiv 2310.07999, which expands Pre-LN so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from deepnet.errors import ConfigError
from deepnet.growth.preserved import what_jumps
from deepnet.growth.relayer import Origins, scale_branch, sites_of, with_layers
from deepnet.schemes.base import StackName
from deepnet.transformer.models import Transformer
from deepnet.transformer.stacks import Stack

Method = Literal["stack", "interleave"]


@dataclass(frozen=True)
class Grown:
    """A deeper model, and why it does not compute what the trained one did."""

    model: Transformer
    jumps: tuple[str, ...]
    """Reasons; empty where the function is preserved exactly."""


@torch.no_grad()
def grow_model(
    model: Transformer,
    *,
    encoder_layers: int | None = None,
    decoder_layers: int | None = None,
    method: Method = "stack",
) -> Grown:
    """Return a deeper copy of `model`, in evaluation mode; a stack that is not given a number keeps its depth.

    The scheme's coefficients are those of the new depth. Raises ConfigError where a number is not a multiple of the
    trained one, or the scheme's layers cannot be copied so.
    """
    wanted: dict[StackName, int | None] = {"encoder": encoder_layers, "decoder": decoder_layers}
    times = {stack.name: _times(stack, wanted.pop(stack.name), method) for stack in model.stacks()}
    for name, layers in wanted.items():
        if layers:
            raise ConfigError(
                f"{name}_layers is {layers}, but the model has no {name}; leave it out"
            )
    if set(times.values()) == {1}:
        depths = " and ".join(f"{len(stack.layers)} {stack.name}" for stack in model.stacks())
        raise ConfigError(f"the model has {depths} layers already; ask for more of them")
    origins: Origins = {
        stack.name: _origins(len(stack.layers), times[stack.name], method)
        for stack in model.stacks()
    }
    made = with_layers(model, origins)
    new = {name: _copies(layers) for name, layers in origins.items()}
    jumps = tuple(dict.fromkeys(what_jumps(model, made, origins, new)))
    if not jumps:
        _silence(made, new)
    return Grown(made, jumps)


def _times(stack: Stack, layers: int | None, method: Method) -> int:
    """Return how often each layer of a stack is to be there."""
    trained = len(stack.layers)
    if layers is None:
        return 1
    if layers < trained:
        raise ConfigError(
            f"{stack.name}_layers is {layers}, fewer than the {trained} of the trained model; grow makes a model "
            "deeper, and 'deepnet prune' shallower"
        )
    if layers % trained:
        near = layers // trained * trained
        raise ConfigError(
            f"{stack.name}_layers is {layers}, and '{method}' has every one of the {trained} trained layers equally "
            f"often; choose {near} or {near + trained}"
        )
    return layers // trained


def _origins(trained: int, times: int, method: Method) -> list[int]:
    layers = range(trained * times)
    return [layer % trained if method == "stack" else layer // times for layer in layers]


def _copies(origins: Sequence[int]) -> list[int]:
    """Return the places of the layers whose original is there already."""
    return [place for place, origin in enumerate(origins) if origin in origins[:place]]


def _silence(model: Transformer, new: Mapping[StackName, Sequence[int]]) -> None:
    for stack in model.stacks():
        for site in sites_of(stack, new[stack.name]):
            scale_branch(site, 0.0)
