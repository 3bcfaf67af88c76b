"""A model with other layers: copies of a trained model's, each of which adds to the stream what its original did.

What the scheme plans otherwise for the new depth goes into the weights:

    scaled norm m -> m'            its gain and bias times m / m'
    skip a -> a', branch b -> b'   what ends the branch, its last matrix or a norm behind it, times (a' b) / (a b')

The second is exact where a = a'. Under a norm it is so but for its eps, as LN(a' x + (a' b / a) f) = LN(a x + b f);
without one the stream is a' / a times as large.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deepnet.anatomy.own import branch_weights
from deepnet.bundle import Bundle, save_bundle
from deepnet.errors import ConfigError
from deepnet.folding.factors import scale_norm, scale_rows
from deepnet.schemes.base import Constant, StackName
from deepnet.transformer.layers import Sublayer
from deepnet.transformer.models import Transformer, TransformerConfig
from deepnet.transformer.norms import ScaledNorm
from deepnet.transformer.residual import Residual
from deepnet.transformer.stacks import Stack

Origins = Mapping[StackName, Sequence[int]]
"""For each layer of a stack the trained one that it copies, from 0."""
_NORMS = ("pre", "out", "post")


@torch.no_grad()
def with_layers(model: Transformer, origins: Origins) -> Transformer:
    """Return a model, in evaluation mode, whose layers copy those that `origins` names; all else is as it was.

    Torch's generator is left as it was. Raises ConfigError where the scheme has no model of that depth, or other
    modules in a layer than in its original.
    """
    made = _build(model, origins)
    for stack, old in zip(made.stacks(), model.stacks(), strict=True):
        for place, origin in enumerate(origins[stack.name]):
            where = f"layer {place + 1} of the {stack.name}, a copy of layer {origin + 1}"
            originals, sites = [*sites_of(old, [origin])], [*sites_of(stack, [place])]
            kinds = [[site.kind for site in found] for found in (originals, sites)]
            if kinds[0] != kinds[1]:
                raise ConfigError(
                    f"{where}, has {kinds[1]} at the new depth, not {kinds[0]}; keep the depth"
                )
            for original, site in zip(originals, sites, strict=True):
                _take_site(original, site, where)
    _take(_outside(model), _outside(made), "what is outside the layers")
    made.advance(int(model.scheme_step))
    return made.eval()


def sites_of(stack: Stack, places: Sequence[int]) -> Iterator[Sublayer]:
    """Yield the residual sites of some layers, from 0."""
    for place in places:
        yield from (one for one in stack.layers[place].modules() if isinstance(one, Sublayer))


def depths_of(origins: Origins) -> dict[str, int]:
    """Return the layers of each stack, by the keys of a recipe."""
    return {f"{stack}_layers": len(layers) for stack, layers in origins.items()}


def save_relayered(
    bundle: Bundle, model: Transformer, out: Path, *, made: Mapping[str, Any]
) -> None:
    """Write a model of other layers beside the tokenizers and the record of the bundle that it was made from."""
    save_bundle(
        out,
        model,
        bundle.tokenizers,
        languages=bundle.config.languages,
        provenance={**bundle.config.training, **made},
    )


def _build(model: Transformer, origins: Origins) -> Transformer:
    config = TransformerConfig.model_validate(model.config.model_dump() | depths_of(origins))
    weight = model.target_embedding.weight
    with torch.random.fork_rng(devices=[]):
        made = Transformer(
            config, model.scheme, ends=model.ends, optimizer_family=model.optimizer_family
        )
    return made.to(weight.device, weight.dtype)


def _outside(model: Transformer) -> dict[str, Tensor]:
    """Return all that is saved of a model but its layers."""
    layers = tuple(f"{stack.name}.layers." for stack in model.stacks())
    return {key: held for key, held in model.state_dict().items() if not key.startswith(layers)}


def _take_site(old: Sublayer, new: Sublayer, where: str) -> None:
    """Give a site what its original has, so that it adds the same to the stream."""
    for name in _NORMS:
        _take_norm(
            getattr(old.residual, name), getattr(new.residual, name), f"{where}, norm '{name}'"
        )
    _take(_besides_norms(old), _besides_norms(new), where)
    factor = _ratio(old.residual) / _ratio(new.residual)
    if factor != 1.0:
        scale_branch(new, factor)


def scale_branch(site: Sublayer, factor: float) -> None:
    """Make the branch of a site add `factor` times what it did."""
    if site.residual.out is not None:
        scale_norm(site.residual.out, _exact(factor))
    else:
        scale_rows(branch_weights(site.branch)[-1], _exact(factor))


def _exact(factor: float) -> Tensor:
    return torch.tensor([factor], dtype=torch.float64)


def _besides_norms(site: Sublayer) -> dict[str, Tensor]:
    norms = tuple(f"residual.{name}." for name in _NORMS)
    return {key: held for key, held in site.state_dict().items() if not key.startswith(norms)}


def _take_norm(old: nn.Module | None, new: nn.Module | None, where: str) -> None:
    (inner, factor), (own, mine) = _unscaled(old), _unscaled(new)
    _take(inner.state_dict(), own.state_dict(), where)
    if factor != mine:
        scale_norm(own, _exact(factor / mine))


def _unscaled(norm: nn.Module | None) -> tuple[nn.Module, float]:
    """Return a norm and what its output is multiplied by; for none, a module without tables."""
    if isinstance(norm, ScaledNorm):
        return norm.norm, norm.value
    return norm or nn.Identity(), 1.0


def _ratio(residual: Residual) -> float:
    """Return how much the branch weighs beside the skip where both are fixed; 1 where training or time decides."""
    skip, branch = residual.plan.skip, residual.plan.branch_scale
    if not (isinstance(skip, Constant) and isinstance(branch, Constant)):
        return 1.0
    return branch.value / skip.value if skip.value and branch.value else 1.0


def _take(old: Mapping[str, Tensor], new: Mapping[str, Tensor], where: str) -> None:
    """Copy tensors into those of the same names; raises ConfigError where names or shapes differ."""
    for name in sorted(old.keys() | new.keys()):
        shapes = [list(held[name].shape) if name in held else "missing" for held in (old, new)]
        if shapes[0] != shapes[1]:
            raise ConfigError(
                f"{where}: '{name}' is {shapes[0]} in the trained model and {shapes[1]} at the new depth, so that this "
                "scheme's weights do not go over to it; keep the depth, or train a model of the new one from the start"
            )
        new[name].copy_(old[name])
