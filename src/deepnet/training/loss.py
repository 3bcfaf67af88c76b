"""The loss of every objective: cross-entropy summed over the tokens to predict."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from deepnet.errors import DataError
from deepnet.training.cross_entropy import summed_cross_entropy
from deepnet.training.engine.precision import Precision


class TokenBatch(Protocol):
    """The fields of a batch that the loss reads; `data.objectives.Batch` has them."""

    @property
    def source(self) -> Tensor:
        """[B, S] ids."""

    @property
    def source_keep(self) -> Tensor | None:
        """[B, S], True where a position may be attended; None when nothing is padding."""

    @property
    def target_in(self) -> Tensor | None:
        """[B, T] ids the decoder reads beside the source; None where the model reads one text."""

    @property
    def target_out(self) -> Tensor:
        """[B, T] ids it is to predict; padding where nothing is."""

    @property
    def num_tokens(self) -> int:
        """Tokens to predict."""

    def to(self, device: torch.device, /) -> "TokenBatch":
        """Return the batch on a device."""


def token_loss(*, label_smoothing: float) -> Callable[[nn.Module, TokenBatch], Tensor]:
    """Return the loss of a batch under a model that maps (source, source_keep, target_in) to logits [B, T, V-1]."""

    def loss(model: nn.Module, batch: TokenBatch) -> Tensor:
        logits = model(batch.source, batch.source_keep, batch.target_in)
        return summed_cross_entropy(logits, batch.target_out, label_smoothing=label_smoothing)

    return loss


class SummedLoss(NamedTuple):
    """The loss of some batches, in nats, and how many tokens there were to predict."""

    nats: float
    num_tokens: int

    def per_token(self) -> float:
        """Return nats per predicted token; raises DataError where there are none."""
        if not self.num_tokens:
            raise DataError("the validation set has no tokens to predict")
        return self.nats / self.num_tokens


def total_loss(found: Iterable[SummedLoss]) -> SummedLoss:
    """Return the loss of all batches together."""
    nats, num_tokens = zip(*found, strict=True)
    return SummedLoss(sum(nats), sum(num_tokens))


def validation_loss(
    model: nn.Module,
    batches: Iterable[TokenBatch],
    *,
    device: torch.device,
    precision: Precision,
) -> float:
    """Return the unsmoothed loss in nats per predicted token over all batches, in evaluation mode."""
    return held_out_loss(model, batches, device=device, precision=precision).per_token()


@torch.no_grad()
def held_out_loss(
    model: nn.Module,
    batches: Iterable[TokenBatch],
    *,
    device: torch.device,
    precision: Precision,
) -> SummedLoss:
    """Return the unsmoothed loss of the batches, in evaluation mode."""
    loss = token_loss(label_smoothing=0.0)
    total, num_tokens = torch.zeros((), dtype=torch.float64, device=device), 0
    was_training = model.training
    model.eval()
    for batch in batches:
        with precision.autocast():
            total += loss(model, batch.to(device))
        num_tokens += batch.num_tokens
    model.train(was_training)
    return SummedLoss(total.item(), num_tokens)
