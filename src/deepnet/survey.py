"""The catalogue of residual schemes, with what each adds to a model as read off one that was built."""

from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import groupby, product
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import nn

from deepnet.errors import ConfigError
from deepnet.schemes import post_ln
from deepnet.schemes.base import Architecture, ResidualScheme
from deepnet.schemes.catalogue import load_scheme, scheme_class, scheme_table
from deepnet.schemes.coefficients import coefficients
from deepnet.transformer.attention import Attention
from deepnet.transformer.counting import count_parameters
from deepnet.transformer.layers import Sublayer
from deepnet.transformer.models import Transformer, TransformerConfig
from deepnet.transformer.norms import ScaledNorm
from deepnet.transformer.stacks import Stack

NORMS = (
    "Norms: pre is before a branch, out on its output, post after the addition; q, k, v, heads and activation are "
    "inside a branch, stream is between layers, embedding and final are at the ends of a stack."
)
"""What the words in the column of norms mean."""
PARAMETERS = (
    "Parameters beside post_ln's: in a model of 4 layers per stack, d_model 512, ffn_dim 2048 and 32,000 ids, of the "
    "first of the scheme's architectures."
)
"""Where the extra parameters are counted."""
_LAYERS = 4


def scheme_catalogue() -> list[dict[str, Any]]:
    """Return `scheme_table` with the norms and extra parameters that a model of each scheme turns out to have."""
    rows = scheme_table()
    first: dict[Architecture, int] = {
        architecture: _count(_build(post_ln.Scheme(), architecture))
        for architecture in {row["architectures"][0] for row in rows}
    }
    for row in rows:
        architecture = row["architectures"][0]
        model = _build(load_scheme(row["name"]), architecture)
        row["norms"] = describe_norms(model.stacks()[-1])
        row["extra_parameters"] = _count(model) - first[architecture]
    return rows


def _build(scheme: ResidualScheme, architecture: Architecture) -> Transformer:
    """Return a model that has shapes but no numbers."""
    config = TransformerConfig(
        architecture=architecture,
        encoder_layers=0 if architecture == "decoder_only" else _LAYERS,
        decoder_layers=0 if architecture == "encoder_only" else _LAYERS,
        vocab_size=32000,
    )
    with torch.device("meta"):
        return Transformer(config, scheme)


def _count(model: Transformer) -> int:
    return count_parameters(model)["total"]


def describe_norms(stack: Stack) -> str:
    """Return where a stack's norms stand, by layer and branch where these differ, and unusual kinds."""
    layers = groupby(stack.sites(), key=lambda site: site.residual.site.layer)
    parts = _by_layer([_of_layer(sites) for _, sites in layers])
    parts += [
        place
        for place, norm in (("embedding", stack.entry.norm), ("final", stack.ends.final))
        if norm is not None
    ]
    kinds = ", ".join(sorted(_unusual(stack)))
    return "; ".join(part for part in parts if part) + (f" ({kinds})" if kinds else "") or "none"


def _by_layer(described: list[str]) -> list[str]:
    """Return one description where all layers agree, else one for each run of layers that do."""
    if len(set(described)) == 1:
        return described[:1]
    runs = [list(run) for _, run in groupby(enumerate(described, 1), key=lambda one: one[1])]
    return [f"{_span(run[0][0], run[-1][0])}: {run[0][1] or 'none'}" for run in runs]


def _span(first: int, last: int) -> str:
    return f"layer {first}" if first == last else f"layers {first} to {last}"


def _of_layer(sites: Iterable[Sublayer]) -> str:
    """Return the places of a layer's norms, once where all its sites agree."""
    places = {sublayer.kind: ", ".join(_places(sublayer)) for sublayer in sites}
    if len(set(places.values())) == 1:
        return next(iter(places.values()))
    return "; ".join(f"{kind}: {where or 'none'}" for kind, where in places.items())


def _places(sublayer: Sublayer) -> Iterator[str]:
    residual = sublayer.residual
    around: dict[str, object] = {"pre": residual.pre, "out": residual.out, "post": residual.post}
    yield from (place for place, norm in (around | _inside(sublayer)).items() if norm is not None)
    if any(isinstance(module, nn.LayerNorm) for module in residual.extra.modules()):
        yield "stream"


def _inside(sublayer: Sublayer) -> dict[str, object]:
    branch = sublayer.branch
    if isinstance(branch, Attention):
        names = ("q", "k", "v", "heads")
        norms = (branch.q_norm, branch.k_norm, branch.v_norm, branch.heads_norm)
        return dict(zip(names, norms, strict=True))
    return {"activation": branch.activation_norm}


def _unusual(stack: Stack) -> set[str]:
    """Return the kinds of norm that are not the model's own."""
    residuals = [site.residual for site in stack.sites()]
    norms = [norm for one in residuals for norm in (one.pre, one.out, one.post)]
    own = [
        norm.norm if isinstance(norm, ScaledNorm) else norm for norm in (*norms, stack.ends.final)
    ]
    return {type(norm).__name__.strip("_") for norm in own if norm is not None} - {"LayerNorm"}


# What a scheme refuses ----------------------------------------------------------------------------------------------


def refused_options(name: str) -> dict[str, dict[str, Any]]:
    """Return what the scheme says to combinations of options that it refuses, with the fewest that bring it about.

    Tried on every architecture: all values of options that have names, and -1 for each that is a number.
    """
    kind = scheme_class(name)
    names, hints = [one.name for one in fields(kind)], get_type_hints(kind)
    changed = [[{}, *({one: value} for value in _values(hints[one]))] for one in names]
    combined = [
        {key: value for one in changes for key, value in one.items()}
        for changes in product(*changed)
    ]
    found: dict[str, dict[str, Any]] = {}
    for changes in sorted(combined, key=lambda one: (len(one), [names.index(n) for n in one])):
        for message in _refusals(name, changes):
            found.setdefault(message, changes)
    return found


def _values(hint: Any) -> list[Any]:
    """Return the values to try for an option of that type."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if NoneType in get_args(hint):
        return [value for one in get_args(hint) if one is not NoneType for value in _values(one)]
    return [False, True] if hint is bool else [hint(-1)]


def _refusals(name: str, options: dict[str, Any]) -> Iterator[str]:
    layers: dict[Architecture, tuple[int, int]] = {
        "encoder_decoder": (4, 4),
        "encoder_only": (4, 0),
        "decoder_only": (0, 4),
    }
    for architecture in scheme_class(name).architectures:
        n, m = layers[architecture]
        try:
            coefficients(load_scheme(name, options), encoder_layers=n, decoder_layers=m)
        except ConfigError as error:
            yield str(error)
