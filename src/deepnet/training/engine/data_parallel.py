"""Data parallel: every rank holds the whole model, and gradients are averaged over the ranks."""

from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from deepnet.training.engine.base import Engine

# torch 2.13 renamed the option and warns about the old name
_NO_BUFFER_SYNC: dict[str, Any] = (
    {"forward_sync_buffers": False}
    if "forward_sync_buffers" in signature(DistributedDataParallel).parameters
    else {"broadcast_buffers": False}
)


class DataParallel(Engine):
    """Runs a copy of the model on every rank.

    Buffers are not sent around: what the loop keeps in them is a function of the step.
    """

    def _wrap(self) -> nn.Module:
        device = self.ranks.device
        return DistributedDataParallel(
            self.model,
            device_ids=[device] if device.type == "cuda" else None,
            process_group=self.ranks.gradients,
            **_NO_BUFFER_SYNC,
        )

    def _sending(self, sends: bool) -> AbstractContextManager[None]:
        assert isinstance(self.module, DistributedDataParallel)
        return nullcontext() if sends else self.module.no_sync()
