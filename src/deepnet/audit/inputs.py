"""Example inputs for a model that came without: tries what Transformers usually read."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Inputs = tuple[Any, ...] | Mapping[str, Any]

_BATCH, _SOURCE, _TARGET = 2, 7, 5


def likely_inputs(model: nn.Module) -> Iterator[tuple[str, Inputs]]:
    """Yield descriptions and inputs in the order in which they should be tried; only those that `forward` accepts."""
    signature = inspect.signature(model.forward)
    for described, inputs in _guesses(model):
        try:
            signature.bind(**inputs) if isinstance(inputs, Mapping) else signature.bind(*inputs)
        except TypeError:
            continue
        yield described, inputs


def _guesses(model: nn.Module) -> Iterator[tuple[str, Inputs]]:
    """Yield ids, pairs of ids, then vectors."""
    source, target = _ids(model, _SOURCE), _ids(model, _TARGET)
    if source is not None and target is not None:
        named = {"input_ids": source, "decoder_input_ids": target}
        yield "input_ids [2, 7] and decoder_input_ids [2, 5]", named
        yield "token ids [2, 7]", (source,)
        yield "token ids [2, 7] and [2, 5]", (source, target)
        yield "token ids [2, 7], no mask, token ids [2, 5]", (source, None, target)
    width = _width(model)
    if width is not None:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(_BATCH, _SOURCE, width, generator=generator)
        yield f"vectors [2, 7, {width}]", (x,)
        yield f"vectors [2, 7, {width}] twice", (x, x.flip(1))


def input_tensors(inputs: Inputs) -> list[Tensor]:
    """Return the tensors among some inputs."""
    values = inputs.values() if isinstance(inputs, Mapping) else inputs
    return [value for value in values if isinstance(value, Tensor)]


def cast_inputs(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    """Return the inputs with every floating-point tensor in another type."""

    def cast(value: Any) -> Any:
        is_float = isinstance(value, Tensor) and value.is_floating_point()
        return value.detach().to(dtype) if is_float else value

    if isinstance(inputs, Mapping):
        return {name: cast(value) for name, value in inputs.items()}
    return tuple(cast(value) for value in inputs)


def _ids(model: nn.Module, length: int) -> Tensor | None:
    """Return ids that every token table has rows for; tables of under 10 rows are taken for something else's."""
    tables = [p for p in model.parameters() if p.dim() == 2]
    sizes = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    rows = [size for size in (sizes or [len(p) for p in tables]) if size >= 10]
    if not rows:
        return None
    generator = torch.Generator().manual_seed(length)
    return torch.randint(2, min(rows) - 1, (_BATCH, length), generator=generator)


def _width(model: nn.Module) -> int | None:
    """Return the commonest width of what matrices read."""
    widths = [p.shape[1] for p in model.parameters() if p.dim() == 2]
    return max(set(widths), key=widths.count) if widths else None
