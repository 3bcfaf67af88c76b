"""What a scheme plans for a stack of a shape, and for one whose layers run several times with the same weights.

A looped stack is a stack of all the layers that run, in which every pass has the weights of the first. So a scheme
plans for that many layers, and what it plans for a layer has to be the same at every pass: one set of weights has one
draw, one learning rate and one scale. A scheme whose numbers differ from layer to layer can plan for the stored layers
instead (`coefficient_depth`), if its state does not depend on how many layers there are.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    Norm,
    OptimizerFamily,
    ResidualScheme,
    Site,
    SitePlan,
    StackContext,
    StackName,
    StackPlan,
    Stream,
)
from deepnet.transformer.config import TransformerConfig
from deepnet.transformer.norms import norm_factory

if TYPE_CHECKING:
    from collections.abc import Callable

_CONTEXT_FIELDS = {
    "architecture",
    "loops",
    "d_model",
    "ffn_dim",
    "num_heads",
    "tie_embeddings",
    "dropout",
}
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def stack_context(
    config: TransformerConfig, stack: StackName, *, optimizer_family: OptimizerFamily
) -> StackContext:
    """Return what a scheme may know of a stack of that shape, of the layers it plans for."""
    translates = config.architecture == "encoder_decoder"
    source_size = config.source_vocab_size if translates and stack == "encoder" else 0
    return StackContext(
        stack=stack,
        optimizer_family=optimizer_family,
        make_norm=norm_factory(config.norm, eps=config.norm_eps),
        num_kv_heads=config.num_kv_heads or config.num_heads,
        vocab_size=source_size or config.vocab_size,
        **config.planned_layers,
        **config.model_dump(include=_CONTEXT_FIELDS),
    )


def plan_stack(
    scheme: ResidualScheme,
    config: TransformerConfig,
    stack: StackName,
    *,
    optimizer_family: OptimizerFamily,
) -> tuple[StackContext, StackPlan]:
    """Return what the scheme plans for the stored layers of a stack, and for what context.

    Raises ConfigError where a layer that is stored once cannot be all the layers that it stands for.
    """
    context = stack_context(config, stack, optimizer_family=optimizer_family)
    plan = scheme.stack(context)
    if config.loops == 1:
        return context, plan
    if config.coefficient_depth == "unrolled":
        return context, _tied(plan, context)
    if type(plan.stream) is not Stream or any(one.extra for _, one in plan.sites):
        unrolled = config.model_copy(update={"coefficient_depth": "unrolled"})
        whole = stack_context(unrolled, stack, optimizer_family=optimizer_family)
        running = scheme.stack(whole)
        _check_extras(running, whole)
        ends = replace(plan.ends, merge=running.ends.merge)
        plan = replace(plan, stream=running.stream, ends=ends)
    return context, plan


def _tied(plan: StackPlan, context: StackContext) -> StackPlan:
    """Return the plan of the first pass; raises ConfigError where that of another pass differs."""
    _check_extras(plan, context)
    for first, again in _pairs(plan, context):
        for name in (field.name for field in fields(SitePlan) if field.name != "extra"):
            if not alike(getattr(first[1], name), getattr(again[1], name), context.d_model):
                raise ConfigError(
                    f"{_places(first[0], again[0], context)}, and this scheme plans another {name} for each: set "
                    "model.coefficient_depth = 'stored', by which it plans for the stored layers, or loops = 1"
                )
    stored = context.num_layers // context.loops
    return replace(plan, sites=tuple(one for one in plan.sites if one[0].layer <= stored))


def _check_extras(plan: StackPlan, context: StackContext) -> None:
    """Raise ConfigError where the modules that a stream needs of a layer are not the same at every pass."""
    for (site, first), (later, again) in _pairs(plan, context):
        if not alike(first.extra, again.extra, context.d_model):
            raise ConfigError(
                f"{_places(site, later, context)}, and under this scheme they have other modules "
                f"({', '.join({**first.extra, **again.extra})}): its layers cannot be looped so; set model.loops = 1, "
                "or take a scheme whose layers are alike"
            )


def _pairs(
    plan: StackPlan, context: StackContext
) -> Iterator[tuple[tuple[Site, SitePlan], tuple[Site, SitePlan]]]:
    """Yield every site of a later pass behind the one of the first pass whose weights it has."""
    layers = [list(layer.values()) for layer in plan.layers()]
    stored = len(layers) // context.loops
    for number, layer in enumerate(layers[stored:]):
        first = layers[number % stored]
        if len(first) != len(layer):
            raise ConfigError(
                f"{_places(first[0][0], layer[0][0], context)}, and under this scheme they have {len(first)} and "
                f"{len(layer)} sites; set model.loops = 1, or take a scheme whose layers are alike"
            )
        yield from zip(first, layer, strict=True)


def _places(first: Site, again: Site, context: StackContext) -> str:
    stored = context.num_layers // context.loops
    return (
        f"model.loops = {context.loops} makes layers {first.layer} and {again.layer} of the "
        f"{context.num_layers} {context.stack} layers that run one of {stored} that are stored"
    )


def alike(one: Any, other: Any, width: int) -> bool:
    """Return whether two parts of a plan, such as norms for `width` channels, come to the same."""
    if one is other:
        return True
    if isinstance(one, Norm) and isinstance(other, Norm):
        same = one.multiplier == other.multiplier
        return same and (one.make == other.make or _make_alike(one.make, other.make, width))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(one[k], other[k], width) for k in one)
    if callable(one) and callable(other):
        return bool(one == other) or _make_alike(one, other)
    return bool(one == other)


def _make_alike(
    one: "Callable[..., nn.Module]", other: "Callable[..., nn.Module]", *width: int
) -> bool:
    """Return whether two functions make the same module, of no numbers yet."""
    with torch.device("meta"):
        return _same_module(one(*width), other(*width))


def _same_module(one: nn.Module, other: nn.Module) -> bool:
    inner, others = dict(one.named_children()), dict(other.named_children())
    return (
        type(one) is type(other)
        and _settings(one) == _settings(other)
        and inner.keys() == others.keys()
        and all(_same_module(inner[name], others[name]) for name in inner)
    )


def _settings(module: nn.Module) -> dict[str, Any]:
    """Return what a module holds besides others: the shapes of its tensors, and its own attributes as they are."""
    tensors: Iterator[tuple[str, Tensor]] = chain(
        module.named_parameters(recurse=False), module.named_buffers(recurse=False)
    )
    own = {name: held for name, held in vars(module).items() if name not in _OF_EVERY_MODULE}
    return {**own, **{name: tuple(tensor.shape) for name, tensor in tensors}}
