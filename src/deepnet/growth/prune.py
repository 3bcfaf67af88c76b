"""A trained model made shallower: the layers go whose output is most like the one below it.

Similarities are measured once, on the whole model: the mean cosine of `probes.similarity`. Of all stacks together the
highest go first, the deeper layer of two that are alike to the last digit. The first layer of a stack has none below
it, and stays.

Source: Men et al., ShortGPT, arXiv 2403.03853, for language models: one minus this cosine is their block influence.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from deepnet.errors import ConfigError
from deepnet.growth.relayer import Origins, with_layers
from deepnet.probes.similarity import Similarity
from deepnet.schemes.base import StackName
from deepnet.transformer.models import Transformer


class LayerPlace(NamedTuple):
    """A layer of a stack, from 0."""

    stack: StackName
    layer: int

    def __str__(self) -> str:
        """Return it as probes write it, from 1."""
        return f"{self.stack}.{self.layer + 1}"


Similarities = Mapping[LayerPlace, float]
"""By layer the cosine of its output with that of the layer below."""


@torch.no_grad()
def layer_similarities(model: Transformer, arguments: tuple[Tensor | None, ...]) -> Similarities:
    """Return the similarity of every layer but the first of a stack, as `model` is called with `arguments`."""
    was_training = model.training
    with Similarity(model.eval()) as probe:
        model(*arguments)
    model.train(was_training)
    found = {(place.stack, place.layer): value for place, value in probe.readings().items()}
    return {
        LayerPlace(stack.name, layer): found[stack.name, layer + 1]
        for stack in model.stacks()
        for layer in range(1, len(stack.layers))
    }


def most_similar(model: Transformer, similarities: Similarities, *, kept: int) -> list[LayerPlace]:
    """Return the layers to drop for `kept` of all stacks to be left, the most similar first.

    Raises ConfigError where there is nothing to drop, or no layer would be left in a stack.
    """
    stacks = model.stacks()
    layers = sum(len(stack.layers) for stack in stacks)
    if kept >= layers:
        raise ConfigError(
            f"layers_kept is {kept}, and the model has {layers} layers; ask for fewer ('deepnet grow' adds layers)"
        )
    if kept < len(stacks):
        raise ConfigError(
            f"layers_kept is {kept}; expected at least {len(stacks)}, as the first layer of each stack stays"
        )
    ranked = sorted(similarities, key=lambda place: (similarities[place], place), reverse=True)
    return ranked[: layers - kept]


def prune_model(model: Transformer, dropped: list[LayerPlace]) -> Transformer:
    """Return a copy of `model`, in evaluation mode, without some layers, as `with_layers` makes it.

    Coefficients are those of the depth that is left. Raises ConfigError where the scheme's layers do not go over to it.
    """
    origins: Origins = {
        stack.name: [
            layer
            for layer in range(len(stack.layers))
            if LayerPlace(stack.name, layer) not in dropped
        ]
        for stack in model.stacks()
    }
    return with_layers(model, origins)
