"""Where a reading belongs: a stack, a layer, a site and a role; and every weight of a model by its place."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain, takewhile
from typing import Any, NamedTuple

from torch import nn

from deepnet.anatomy.base import Anatomy, FoundSite, FoundStack, Weight
from deepnet.anatomy.locate import is_huggingface, locate
from deepnet.errors import AdaptError
from deepnet.schemes.base import Role
from deepnet.transformer.initialize import small_role
from deepnet.transformer.models import Transformer
from deepnet.transformer.stacks import Stack


class Place(NamedTuple):
    """A place in a model; as text "encoder.3.ffn.fc1", "decoder.2.cross", "encoder.3" or "output"."""

    stack: str
    """encoder, decoder, or nothing for what belongs to no stack."""
    layer: int
    """From 1; 0 for what is the stack's or the model's own."""
    site: str = ""
    """self, cross, merged or ffn (a second one in a layer: ffn2); embedding, vocabulary, output, final; or nothing."""
    role: str = ""
    """q, k, v, out, fc1, gate, fc2, embedding, position, norm, bias, scale, ...; or nothing."""

    def __str__(self) -> str:
        layer = str(self.layer) if self.layer else ""
        return ".".join(part for part in (self.stack, layer, self.site, self.role) if part)

    @property
    def key(self) -> str:
        """What the place has in common with the same place in other layers: "encoder.ffn.fc1"."""
        return str(self._replace(layer=0))


OUTPUT = Place("", 0, "output")
"""The model's logits."""


def by_layer(
    readings: Mapping[Place, float], *, num_layers: Mapping[str, int]
) -> dict[str, list[float | None]]:
    """Return readings as lists over the layers of each stack, by what their places have in common.

    Five significant digits; None where there is no reading or none that is finite.
    """
    table: dict[str, list[float | None]] = {}
    for place, value in readings.items():
        row = table.setdefault(place.key, [None] * (num_layers[place.stack] if place.layer else 1))
        row[max(place.layer - 1, 0)] = rounded(value)
    return table


def rounded(value: float) -> float | None:
    """Return a reading to five significant digits, None where it is not finite."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def site_places(anatomy: Anatomy) -> Iterator[tuple[Place, FoundSite]]:
    """Yield every residual site with its place, in order."""
    taken: Counter[tuple[str, int, str]] = Counter()
    for found in anatomy.sites():
        stack, layer, kind = found.site.stack, found.site.layer, found.site.kind
        taken[stack, layer, kind] += 1
        number = taken[stack, layer, kind]
        yield Place(stack, layer, kind if number == 1 else f"{kind}{number}"), found


def layer_places(anatomy: Anatomy) -> Iterator[tuple[Place, FoundSite]]:
    """Yield every layer with its last site, the output of whose owner is the layer's."""
    for found in anatomy.sites():
        if found.site.last_in_layer:
            yield Place(found.site.stack, found.site.layer), found


def branch_of(anatomy: Anatomy, found: FoundSite) -> nn.Module:
    """Return the innermost module that holds every weight of a site's branch."""
    if found.part.branch is not None:
        return found.part.branch
    paths = [anatomy.path(weight.owner).split(".") for weight in found.part.weights]
    levels = takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    return anatomy.model.get_submodule(".".join(parts[0] for parts in levels))


def norm_classes(anatomy: Anatomy) -> tuple[type[nn.Module], ...]:
    """Return the classes of the norms that a model may be made of."""
    return nn.LayerNorm, nn.RMSNorm, type(anatomy.make_norm(1))


def final_norm(anatomy: Anatomy, stack: FoundStack) -> nn.Module | None:
    """Return the norm after the last site of a stack, None where there is none."""
    if isinstance(stack.module, Stack):
        return stack.module.ends.final
    after = stack.sites[-1].residual
    closing = None if after is None else dict(after.named_children()).get("final")
    there = closing or (None if stack.final is None else stack.final.get())
    return there if isinstance(there, norm_classes(anatomy)) else None


def weight_places(model: nn.Module) -> dict[Place, list[Weight]]:
    """Return every parameter by its place; raises AdaptError for a model whose sites are not known.

    The matrices have the role that the anatomy gives them. What a site has besides stands under "bias", "norm" and
    "scale"; what belongs to nothing known, such as a head, stands under its name.
    """
    anatomy = locate(model)
    places: dict[Place, list[Weight]] = {}
    for place, weight in chain(_matrices(anatomy), _others(anatomy)):
        places.setdefault(place, []).append(weight)
    return places


def parameter_places(model: nn.Module) -> list[Place]:
    """Return the place of each of `model.parameters()`, in that order; one that holds q, k and v has the role "qkv".

    In a model whose sites are not known the place of a parameter is its name.
    """
    try:
        weights = weight_places(model)
    except AdaptError:
        return [Place("", 0, name) for name, _ in model.named_parameters()]
    found: dict[int, Place] = {}
    for place, held in weights.items():
        for key in {id(weight.parameter) for weight in held}:
            earlier = found.get(key)
            role = place.role if earlier is None else earlier.role + place.role
            found[key] = place._replace(role=role)
    return [found[id(parameter)] for parameter in model.parameters()]


def _matrices(anatomy: Anatomy) -> Iterator[tuple[Place, Weight]]:
    """Yield the matrices of the sites and their biases."""
    for place, found in site_places(anatomy):
        for weight in found.part.weights:
            yield place._replace(role=weight.role), weight
            if weight.bias_parameter is not None:
                bias = Weight(
                    role="bias", owner=weight.owner, name=weight.bias_name, rows=weight.rows
                )
                yield place._replace(role="bias"), bias


def _others(anatomy: Anatomy) -> Iterator[tuple[Place, Weight]]:
    """Yield every parameter that is no matrix of a site and no bias of one, once."""
    seen = {id(weight.parameter) for _, weight in _matrices(anatomy)}
    tables, around, norms = _tables(anatomy), regions(anatomy), norm_classes(anatomy)
    for path, module in anatomy.model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            full_name = f"{path}.{name}" if path else name
            place = tables.get(id(parameter))
            if place is None:
                role = _small_role(module, name, norms)
                place = _enclosing(around, path, role, full_name)
            yield place, Weight(role=_role_of(place), owner=module, name=name)


def _tables(anatomy: Anatomy) -> dict[int, Place]:
    """Return the places of embeddings, positions and the vocabulary projection by the parameter's identity.

    A table that two stacks share belongs to neither, nor does one of a model with a single stack.
    """
    found: dict[int, Place] = {}
    several = len(anatomy.stacks) > 1
    for stack in anatomy.stacks:
        for number, table in enumerate(stack.entry):
            shared = not several or id(table) in found
            role = "position" if number else ""
            found[id(table)] = Place("" if shared else stack.name, 0, "embedding", role)
    if is_huggingface(anatomy.model):
        model: Any = anatomy.model
        found.setdefault(id(model.get_input_embeddings().weight), Place("", 0, "embedding"))
    if anatomy.vocabulary is not None:
        found.setdefault(id(anatomy.vocabulary), Place("", 0, "vocabulary"))
    return found


def regions(anatomy: Anatomy) -> dict[str, Place]:
    """Return the place that the parameters below a module have, by the module's path."""
    places: dict[nn.Module, Place] = {}
    for stack in anatomy.stacks:
        places[stack.module] = Place(stack.name, 0)
        ends = [(final_norm(anatomy, stack), "final"), (stack.entry_norm, "embedding")]
        if isinstance(stack.module, Stack):
            ends += [(stack.module.ends, "final"), (stack.module.entry, "embedding")]
        places |= {
            module: Place(stack.name, 0, name) for module, name in ends if module is not None
        }
    if isinstance(anatomy.model, Transformer) and anatomy.model.logit_scale is not None:
        places[anatomy.model.logit_scale] = OUTPUT
    places |= _site_regions(anatomy)
    return {anatomy.path(module): place for module, place in places.items()}


def _site_regions(anatomy: Anatomy) -> dict[nn.Module, Place]:
    """Return the modules whose parameters are a site's; an owner of several sites stands for their layer."""
    owned = Counter(found.part.owner for found in anatomy.sites())
    places: dict[nn.Module, Place] = {}
    for place, found in site_places(anatomy):
        owner = found.part.owner
        places[owner] = place if owned[owner] == 1 else place._replace(site="")
    for place, found in site_places(anatomy):
        if found.site.kind != "ffn":
            places[branch_of(anatomy, found)] = place
        inner = [found.residual, *found.norms()]
        places |= {module: place for module in inner if module is not None}
    return places


def _small_role(module: nn.Module, name: str, norms: tuple[type[nn.Module], ...]) -> str:
    """Return the role of a parameter that is no matrix of a site, from the module that owns it; "" where unclear."""
    if isinstance(module, nn.Embedding):
        return "position"
    return "" if isinstance(module, nn.Linear) else small_role(module, name, norms=norms)


def _enclosing(around: Mapping[str, Place], path: str, role: str, full_name: str) -> Place:
    """Return the place of the innermost region around `path`, or the parameter's name where there is none."""
    while role and path:
        if path in around:
            place = around[path]
            at_start = role == "position" and not place.site
            return place._replace(role=role, site="embedding" if at_start else place.site)
        path = path.rpartition(".")[0]
    return Place("", 0, "embedding", role) if role == "position" else Place("", 0, full_name)


def _role_of(place: Place) -> Role:
    """Return the role of a parameter by its place."""
    roles: dict[str, Role] = {
        "position": "position", "norm": "norm", "bias": "bias", "scale": "scale",
        "embedding": "embedding", "vocabulary": "vocabulary",
    }  # fmt: skip
    return roles.get(place.role or place.site, "scale")
