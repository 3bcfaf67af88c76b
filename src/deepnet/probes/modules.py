"""Every module of a model by the place it belongs to."""

from collections import defaultdict

from torch import nn

from deepnet.anatomy.base import Anatomy
from deepnet.anatomy.locate import locate
from deepnet.errors import AdaptError
from deepnet.probes.place import OUTPUT, Place, branch_of, regions, site_places, weight_places

_VECTORS = ("norm", "bias", "scale")


def module_places(model: nn.Module) -> dict[str, Place]:
    """Return the place of each module by its path: that of its own matrices, or of the innermost site around it.

    A module that several sites share has a path and a place in each. What is in no site stands under its path, the
    model itself under "output". In a model whose sites are not known every module stands under its path.
    """
    try:
        known = _known(locate(model))
    except AdaptError:
        known = {}
    paths = [path for path, _ in model.named_modules(remove_duplicate=False)]
    return {path: _innermost(known, path) for path in paths}


def _known(anatomy: Anatomy) -> dict[str, Place]:
    inner = {path: place for path, place in regions(anatomy).items() if path}
    for place, found in site_places(anatomy):
        path = anatomy.path(branch_of(anatomy, found))
        inner.setdefault(path, place)
    return {**_layers(anatomy), **inner, **_own(anatomy)}


def _layers(anatomy: Anatomy) -> dict[str, Place]:
    """Return the modules around the sites of one layer and of no other."""
    around: dict[str, set[Place]] = defaultdict(set)
    for place, found in site_places(anatomy):
        parts = anatomy.path(found.part.owner).split(".")
        for length in range(1, len(parts) + 1):
            around[".".join(parts[:length])].add(Place(place.stack, place.layer))
    return {path: next(iter(layers)) for path, layers in around.items() if len(layers) == 1}


def _own(anatomy: Anatomy) -> dict[str, Place]:
    """Return the modules without others inside that own parameters; one that holds q, k and v has the role "qkv"."""
    found: dict[str, Place] = {}
    for place, weights in weight_places(anatomy.model).items():
        for weight in weights:
            path = anatomy.path(weight.owner)
            earlier = found.get(path)
            is_named = place.site == f"{path}.{weight.name}"  # in no site: it stands under its path
            if is_named or any(weight.owner.children()) or (earlier and place.role in _VECTORS):
                continue
            matrices = "" if earlier is None or earlier.role in _VECTORS else earlier.role
            found[path] = place._replace(role=matrices + place.role)
    return found


def _innermost(known: dict[str, Place], path: str) -> Place:
    around = path
    while around:
        if around in known:
            return known[around]
        around = around.rpartition(".")[0]
    return Place("", 0, path) if path else OUTPUT
