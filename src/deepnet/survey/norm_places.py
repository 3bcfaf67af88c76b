"""Where the norms of a model turn out to stand, in words."""

from collections.abc import Iterable, Iterator
from itertools import groupby

from torch import nn

from deepnet.transformer.attention import Attention
from deepnet.transformer.layers import Sublayer
from deepnet.transformer.norms import ScaledNorm
from deepnet.transformer.stacks import Stack


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
