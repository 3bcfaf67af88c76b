"""Train, diagnose, adopt and deploy Transformers of any depth.

Importing deepnet imports nothing else; each name below is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from deepnet.version import __version__

if TYPE_CHECKING:
    from deepnet.bundle import load_bundle as load_bundle
    from deepnet.decoding.interface import DecodingConfig as DecodingConfig
    from deepnet.decoding.translate import translate as translate
    from deepnet.pipeline.entry import train as train
    from deepnet.pipeline.entry import train_model as train_model
    from deepnet.pipeline.recipe import load_recipe as load_recipe
    from deepnet.schemes.catalogue import list_schemes as list_schemes
    from deepnet.schemes.catalogue import load_scheme as load_scheme
    from deepnet.schemes.coefficients import coefficients as coefficients
    from deepnet.transformer.models import Transformer as Transformer
    from deepnet.transformer.models import TransformerConfig as TransformerConfig

_HOMES = {
    "DecodingConfig": "deepnet.decoding.interface",
    "Transformer": "deepnet.transformer.models",
    "TransformerConfig": "deepnet.transformer.models",
    "coefficients": "deepnet.schemes.coefficients",
    "list_schemes": "deepnet.schemes.catalogue",
    "load_bundle": "deepnet.bundle",
    "load_recipe": "deepnet.pipeline.recipe",
    "load_scheme": "deepnet.schemes.catalogue",
    "train": "deepnet.pipeline.entry",
    "train_model": "deepnet.pipeline.entry",
    "translate": "deepnet.decoding.translate",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Load a public name from the module it lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module 'deepnet' has no attribute '{name}'")
    return vars(importlib.import_module(_HOMES[name]))[name]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
