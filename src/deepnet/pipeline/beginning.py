"""Before a run's first update: what a scheme does once to its model, looking at the first batches."""

from collections.abc import Iterable, Iterator
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from deepnet.data.loader import UpdateLoader
from deepnet.errors import ConfigError
from deepnet.training.batches import Batch
from deepnet.training.session import Loss, Prepare
from deepnet.transformer.models import Transformer

Arguments = tuple[Tensor | None, ...]
"""What a model is called with."""


def preparation(model: Transformer, batches: Iterable[Batch], *, loss: Loss) -> Prepare | None:
    """Return the loop's `prepare`: the scheme's own, which sees the arguments with which `loss` calls the model.

    `batches` are those that one process alone would see, the same in every process. None where the model has updates
    behind it.
    """
    if int(model.scheme_step):
        return None
    return lambda _: model.scheme.prepare(model, calls(model, batches, loss=loss))


def first_batches(loader: UpdateLoader, device: torch.device) -> Iterator[Batch]:
    """Yield the micro-batches of the first epoch on a device."""
    for update in loader.updates(0):
        yield from (batch.to(device) for batch in update.batches)


def calls(model: Transformer, batches: Iterable[Batch], *, loss: Loss) -> Iterator[Arguments]:
    """Yield the arguments with which `loss` calls `model` on each batch, without running the model.

    Raises ConfigError where the loss does not call the model itself.
    """
    return (_arguments(model, batch, loss) for batch in batches)


class _Called(Exception):
    """Carries the arguments of a model's call out of a loss, in place of the call."""

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments


def _arguments(model: Transformer, batch: Batch, loss: Loss) -> Arguments:
    hook = model.register_forward_pre_hook(_leave, with_kwargs=True)
    try:
        loss(model, batch)
    except _Called as call:
        return call.arguments
    finally:
        hook.remove()
    raise ConfigError(
        "the model's scheme prepares itself on the model's arguments, but the loss calls only parts of the model; "
        "let it call the model itself, or prepare the model beforehand and give it to train_loop without `prepare`"
    )


def _leave(model: Transformer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    raise _Called(signature(model.forward).bind(*args, **kwargs).args)
