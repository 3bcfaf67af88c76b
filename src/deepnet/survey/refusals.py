"""Which options a scheme refuses, found by trying them."""

from collections.abc import Iterator
from dataclasses import fields
from itertools import product
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from deepnet.errors import ConfigError
from deepnet.schemes.base import Architecture
from deepnet.schemes.catalogue import load_scheme, scheme_class
from deepnet.schemes.coefficients import coefficients


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
    if hint is bool:
        return [False, True]
    return [hint(-1)] if hint in (int, float) else []


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
