"""Which family a model belongs to."""

import importlib
import pkgutil
import sys
from typing import Any

from torch import nn

from deepnet.anatomy import huggingface, own, torch_nn
from deepnet.anatomy.base import Anatomy
from deepnet.errors import AdaptError
from deepnet.transformer.models import Transformer

TORCH_MODELS = (nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder)


def locate(model: nn.Module) -> Anatomy:
    """Return where the residual sites and roles of `model` are; raises AdaptError where its kind is not known."""
    if isinstance(model, Transformer):
        return own.find(model)
    if isinstance(model, TORCH_MODELS):
        return torch_nn.find(model)
    if is_huggingface(model):
        return _huggingface(model)
    inside = [name for name, module in model.named_modules() if is_known(module)]
    hint = f"; give the part of it that is: model.{inside[0]}" if inside else ""
    raise AdaptError(
        f"{type(model).__name__} is none of the models whose additions are known: torch.nn's Transformer, "
        f"TransformerEncoder and TransformerDecoder, and Hugging Face's {', '.join(families())}{hint}"
    )


def is_known(model: nn.Module) -> bool:
    """Return whether `model` is of a kind whose residual sites can be located."""
    if is_huggingface(model):
        known: Any = model
        return known.config.model_type in families()
    return isinstance(model, (Transformer, *TORCH_MODELS))


def families() -> list[str]:
    """Return the names of the Hugging Face families: the files in `huggingface`."""
    return sorted(module.name for module in pkgutil.iter_modules(huggingface.__path__))


def is_huggingface(model: nn.Module) -> bool:
    """Return whether a model is one of transformers', without importing that package."""
    if "transformers" not in sys.modules:
        return False
    kind: Any = vars(sys.modules["transformers"].modeling_utils)["PreTrainedModel"]
    return isinstance(model, kind)


def _huggingface(model: Any) -> Anatomy:
    family = model.config.model_type
    if family not in families():
        raise AdaptError(
            f"the additions of {type(model).__name__} (model_type '{family}') are not known; "
            f"those of {', '.join(families())} are"
        )
    found: Anatomy = importlib.import_module(f"{huggingface.__name__}.{family}").find(model)
    return found
