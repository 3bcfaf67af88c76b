"""The loss of translation: cross-entropy summed over the target tokens that are not padding."""

from collections.abc import Callable, Iterable
from typing import Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepnet.errors import DataError
from deepnet.training.precision import Precision


class TranslationBatch(Protocol):
    """The fields of a batch that the loss reads; `data.loader.Batch` has them."""

    source: Tensor
    source_keep: Tensor | None
    target_in: Tensor
    target_out: Tensor
    num_tokens: int

    def to(self, device: torch.device) -> Self:
        """Return the batch on a device."""


def summed_cross_entropy(logits: Tensor, target: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Return the cross-entropy in nats, in float32, summed over all target tokens that are not padding.

    logits [B, T, V-1] cover the real ids; target [B, T] holds ids up to V-1, and V-1 is padding. Smoothing e gives the
    target 1 - e and spreads e evenly over all real ids, the target included (fairseq: over the others).
    """
    num_ids = logits.size(-1)
    return F.cross_entropy(
        logits.reshape(-1, num_ids).float(),
        target.reshape(-1),
        ignore_index=num_ids,
        label_smoothing=label_smoothing,
        reduction="sum",
    )


def translation_loss(*, label_smoothing: float) -> Callable[[nn.Module, TranslationBatch], Tensor]:
    """Return the loss of a batch under a model that maps (source, source_keep, target_in) to logits [B, T, V-1]."""

    def loss(model: nn.Module, batch: TranslationBatch) -> Tensor:
        logits = model(batch.source, batch.source_keep, batch.target_in)
        return summed_cross_entropy(logits, batch.target_out, label_smoothing=label_smoothing)

    return loss


@torch.no_grad()
def validation_loss(
    model: nn.Module,
    batches: Iterable[TranslationBatch],
    *,
    device: torch.device,
    precision: Precision,
) -> float:
    """Return the unsmoothed negative log-likelihood in nats per target token over all batches, in evaluation mode."""
    loss = translation_loss(label_smoothing=0.0)
    total, num_tokens = torch.zeros((), dtype=torch.float64, device=device), 0
    was_training = model.training
    model.eval()
    for batch in batches:
        with precision.autocast():
            total += loss(model, batch.to(device))
        num_tokens += batch.num_tokens
    model.train(was_training)
    if not num_tokens:
        raise DataError("the validation set has no target tokens")
    return total.item() / num_tokens
