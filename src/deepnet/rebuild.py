"""A model built anew to take saved tensors: nothing is drawn, and nothing is larger than those tensors can fill.

A file's numbers are trusted as far as they are there: a shape in a bundle's config.json could say anything.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from deepnet.errors import CheckpointError
from deepnet.transformer.models import Transformer, TransformerConfig

_META = torch.device("meta")
_DRAWS = (torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default)
UNBUILDABLE = (ArithmeticError, MemoryError, RuntimeError, TypeError, ValueError)
"""What numbers that no saved model has may lead to, in arithmetic or in torch."""
_TIMES, _PER_TENSOR, _BESIDES = 4, 1000, 1 << 20
"""Numbers that may be made for each saved one, for what a tensor costs by itself, and besides: tables, fixed scales."""
_PER_PLAN = 250
"""Numbers that what is planned for a layer takes the place of; of looped layers many are planned for one stored."""


def check_shape(config: TransformerConfig, tensors: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError where a model of that shape has more parameters than there are saved numbers.

    Counted are the matrices that every scheme has: q, k and out of self-attention and the feed-forward of each layer,
    and the vocabulary.
    """
    layers = config.encoder_layers + config.decoder_layers
    rows = config.vocab_size + (config.max_positions if config.positions == "learned" else 0)
    shared = (config.num_kv_heads or config.num_heads) / config.num_heads
    attention = int((2 + shared) * config.d_model**2)
    branches = attention + 2 * config.d_model * config.ffn_dim
    least, saved = layers * branches + config.d_model * rows, _numbers(tensors)
    if least > saved:
        raise CheckpointError(
            f"a model of the shape that config.json says has at least {least:,} parameters, but there are {saved:,} "
            "numbers in model.safetensors; one of them is damaged or of another model: copy both again"
        )
    if layers * config.loops * _PER_PLAN > _allowed(tensors):
        raise CheckpointError(
            f"config.json says that {layers} layers run {config.loops} times, more than a file of that size is trusted "
            "with; it is damaged or of another model: copy it again"
        )


def build_for(
    tensors: Mapping[str, Tensor], make: Callable[[], Transformer], *, limited: bool = True
) -> Transformer:
    """Return the model that `make` builds, its weights whatever the memory held, in the type of the saved ones.

    Raises CheckpointError where it is `limited` and cannot be built, or would be much larger than `tensors`.
    """
    try:
        with _NoRandomDraws(), Frugal(tensors) if limited else nullcontext():  # type: ignore[no-untyped-call]
            model = make()
    except UNBUILDABLE as error:
        if not limited:
            raise
        raise CheckpointError(
            f"no model can be built as its config.json says ({error}); copy or save it again"
        ) from error
    stored = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(stored) == 1 and stored != {torch.get_default_dtype()}:
        model.to(stored.pop())  # only then: it would also round constants that are kept in float64
    return model


class Frugal(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets a model be built only as long as it makes about as many tensors and numbers as are saved of it."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._left = _allowed(tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # what makes a tensor of nothing: its size is asked before it is made; one on meta has none
        if kwargs.get("device", _META) != _META:
            made = func(*args, **{**kwargs, "device": _META})
            self._left -= _PER_TENSOR + (made.numel() if isinstance(made, Tensor) else 0)
        if self._left < 0:
            raise CheckpointError(
                "its config.json asks for a model that is far larger than its weights are; one of them is damaged or "
                "of another model: copy both again"
            )
        return func(*args, **kwargs)


class _NoRandomDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Leaves tensors as they are where random numbers would be drawn that saved ones overwrite anyway."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func in _DRAWS else func(*args, **(kwargs or {}))


def _allowed(tensors: Mapping[str, Tensor]) -> int:
    """Return how many numbers a model that is built for those tensors may make."""
    return _BESIDES + _TIMES * (_numbers(tensors) + _PER_TENSOR * len(tensors))


def _numbers(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors.values())
