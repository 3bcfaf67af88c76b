"""Schemes that measure a model before its first update, given batches as its caller has them."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from deepnet.schemes.base import ResidualScheme


class _OneArgument(nn.Module):
    """A model called with a whole batch, a tuple or a mapping of its inputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training

    def forward(self, batch: Any) -> Any:
        """Return what the model makes of the batch."""
        return self.model(**batch) if isinstance(batch, Mapping) else self.model(*batch)


def prepare(scheme: ResidualScheme, model: nn.Module, batches: Iterable[Any]) -> None:
    """Let the scheme do what it needs before the first update; raises ConfigError where it lacks a batch."""
    scheme.prepare(_OneArgument(model), ((batch,) for batch in batches))
