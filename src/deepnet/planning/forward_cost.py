"""What a model is to those who use it: its parameters, and the operations of a forward pass, found without memory."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from deepnet.planning.live_bytes import LiveBytes
from deepnet.planning.rehearsal import without_memory
from deepnet.transformer.models import Transformer

_LENGTH = 25
"""Tokens of a sentence, about the mean of newspaper text: attention is a small part at that length."""


@dataclass(frozen=True, kw_only=True)
class ForwardCost:
    """What a model has and computes."""

    parameters: int
    flops: float
    """Multiplications and additions of a forward pass for one token of source or target."""


def forward_cost(build: Callable[[], Transformer]) -> ForwardCost:
    """Return the cost of the model that `build` makes, on sentences of 25 tokens.

    Raises PlanError where the model cannot run on tensors without numbers.
    """
    with without_memory(torch.device("cpu")):
        model = build().eval()
        ids = torch.zeros(1, _LENGTH, dtype=torch.int64)
        translates = model.encoder is not None and model.decoder is not None
        with torch.no_grad(), LiveBytes() as live:
            model(ids, None, ids if translates else None)
        parameters = sum(parameter.numel() for parameter in model.parameters())
    return ForwardCost(
        parameters=parameters, flops=live.flops.total() / (_LENGTH * (2 if translates else 1))
    )
