"""A model with other layers, each a copy of a trained model's, under the coefficients of the new depth.

What the scheme plans otherwise for a layer at that depth goes into its weights where that is exact:

    norm multiplied by m, now m'     its gain and bias times m / m'
    branch times b, now b'           what ends the branch, its last matrix or a norm behind it, times b / b'

The second where the skip is scaled as before. Another scale of the skip, such as a post-norm's alpha, is not made up
for: on trained models the jump was smaller when it was left to weigh branches anew (docs/growth.md).
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
from deepnet.schemes.base import Constant, SitePlan, StackName
from deepnet.transformer.layers import Sublayer
from deepnet.transformer.models import Transformer, TransformerConfig
from deepnet.transformer.norms import ScaledNorm
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
    """Give a site what its original has, with what makes up for another plan."""
    for name in _NORMS:
        _take_norm(
            getattr(old.residual, name), getattr(new.residual, name), f"{where}, norm '{name}'"
        )
    _take(_besides_norms(old), _besides_norms(new), where)
    factor = _branch_factor(old.residual.plan, new.residual.plan)
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


def _branch_factor(old: SitePlan, new: SitePlan) -> float:
    """Return what makes up for another fixed scale of the branch; 1 where training, time or the skip decides."""
    before, now = old.branch_scale, new.branch_scale
    if old.skip != new.skip or not (isinstance(before, Constant) and isinstance(now, Constant)):
        return 1.0
    return before.value / now.value if now.value else 1.0


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
