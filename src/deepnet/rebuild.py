"""A model built anew to take saved tensors: nothing is drawn, and nothing is larger than those tensors can fill.

A file's numbers are trusted as far as they are there: a shape in a bundle's config.json could say anything.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from deepnet.errors import CheckpointError
from deepnet.transformer.models import Transformer, TransformerConfig

_DRAWS = (torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default)
_UNBUILDABLE = (ArithmeticError, MemoryError, RuntimeError, TypeError, ValueError)
"""What numbers that no saved model has may lead to, in arithmetic or in torch."""
_TIMES, _BESIDES = 4, 1 << 20
"""Numbers that building a model may hold for each saved one, and besides: tables of positions, fixed scales."""


def check_shape(config: TransformerConfig, tensors: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError where a model of that shape has more parameters than there are saved numbers.

    Counted are the matrices that every scheme has: self-attention and feed-forward of each layer, and the vocabulary.
    """
    layers = config.encoder_layers + config.decoder_layers
    rows = config.vocab_size + (config.max_positions if config.positions == "learned" else 0)
    branches = 4 * config.d_model**2 + 2 * config.d_model * config.ffn_dim
    least, saved = layers * branches + config.d_model * rows, _numbers(tensors)
    if least > saved:
        raise CheckpointError(
            f"a model of the shape that config.json says has at least {least:,} parameters, but there are {saved:,} "
            "numbers in model.safetensors; one of them is damaged or of another model: copy both again"
        )


def build_for(
    tensors: Mapping[str, Tensor], make: Callable[[], Transformer], *, limited: bool = True
) -> Transformer:
    """Return the model that `make` builds, its weights whatever the memory held, in the type of the saved ones.

    Raises CheckpointError where it is `limited` and cannot be built, or would be much larger than `tensors`.
    """
    try:
        with _Frugal(_TIMES * _numbers(tensors) + _BESIDES if limited else math.inf):
            model = make()
    except _UNBUILDABLE if limited else () as error:
        raise CheckpointError(
            f"no model can be built as its config.json says ({error}); copy or save it again"
        ) from error
    stored = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(stored) == 1 and stored != {torch.get_default_dtype()}:
        model.to(stored.pop())  # only then: it would also round constants that are kept in float64
    return model


class _Frugal(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Draws no random numbers, which saved ones would overwrite, and makes no more numbers than it is given."""

    def __init__(self, most: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left = most

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DRAWS:
            return args[0]
        if "device" in kwargs:  # what makes a tensor of nothing: its size is asked before it is made
            self._left -= _size(func(*args, **{**kwargs, "device": torch.device("meta")}))
        if self._left < 0:
            raise CheckpointError(
                "its config.json asks for a model that is far larger than model.safetensors; one of them is damaged or "
                "of another model: copy both again"
            )
        return func(*args, **kwargs)


def _size(made: Any) -> int:
    return made.numel() if isinstance(made, Tensor) else 0


def _numbers(tensors: Mapping[str, Tensor]) -> int:
    return sum(math.prod(tensor.shape) for tensor in tensors.values())
