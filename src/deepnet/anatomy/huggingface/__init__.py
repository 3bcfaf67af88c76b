"""Hugging Face's models, one file per family; the file name is the `model_type` of the configuration.

Each file overrides the one forward of a layer that holds its residual additions, and says where norms and weights are.
Only these files import transformers, and they are imported only when a model of that family is looked at.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from deepnet.anatomy.base import Anatomy, FoundStack
from deepnet.anatomy.rows import tying
from deepnet.errors import AdaptError
from deepnet.schemes.base import Architecture


def anatomy_of(
    model: Any, architecture: Architecture, *stacks: FoundStack, norm: Callable[[int], nn.Module]
) -> Anatomy:
    """Return the anatomy of a model made of those stacks; `norm` makes one of its own class for a width."""
    output = model.get_output_embeddings()
    return Anatomy(
        model=model,
        family=model.config.model_type,
        architecture=architecture,
        stacks=stacks,
        make_norm=norm,
        vocabulary=None if output is None else output.weight,
        tie_embeddings=tying(tuple(use for stack in stacks for use in stack.rows)),
    )


def refuse_lone_decoder(model: Any) -> None:
    """Raise AdaptError for a single stack with cross-attention."""
    if model.config.add_cross_attention:
        raise AdaptError(
            f"{type(model).__name__} has cross-attention to an encoder it does not hold, so its depth is unknown; "
            "expected add_cross_attention=False, or an encoder-decoder such as Marian or BART"
        )
