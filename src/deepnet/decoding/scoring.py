"""Forced scoring: the log-probability that a model gives to a translation somebody else made, in one pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deepnet.data.tokenizer import EOS
from deepnet.decoding.batches import pad
from deepnet.decoding.interface import TranslationModel, check_length, device_of, evaluating


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a model thinks of one target sentence, given its source."""

    log_probability: float
    """Sum over the tokens and the end of the sentence, natural logarithm."""
    num_tokens: int
    """Target tokens, the end of the sentence counted."""
    score: float
    """`log_probability / num_tokens**length_penalty`."""


@torch.no_grad()
def token_log_probabilities(
    model: TranslationModel,
    source: Tensor,
    source_keep: Tensor | None,
    target_in: Tensor,
    target_out: Tensor,
) -> Tensor:
    """Return the log-probability `[B, T]` of each id of `target_out`; 0 where that is padding."""
    with evaluating(model):
        logits = model(source, source_keep, target_in)
    dtype = torch.promote_types(logits.dtype, torch.float32)
    logp = torch.log_softmax(logits, -1, dtype=dtype)
    real = target_out < logits.shape[-1]
    chosen = logp.gather(2, target_out.where(real, 0)[..., None])[..., 0]
    return chosen.where(real, 0.0)


def score_tokens(
    model: TranslationModel,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    source_padding: int,
    length_penalty: float = 1.0,
    start: int | None = None,
) -> list[Score]:
    """Score one batch: `sources` end in the end id, `targets` are without it, as search returns them.

    `start` is the id that targets start from, by default the model's own. Raises DataError where a sentence is longer
    than the model's positions.
    """
    device = device_of(model)
    longest = max(max(map(len, sources)), max(map(len, targets)) + 1)
    check_length(longest, model.max_positions)
    source, source_keep = pad(sources, padding=source_padding, device=device)
    target_out, _ = pad([[*ids, EOS] for ids in targets], padding=model.start, device=device)
    first = model.start if start is None else start
    target_in, _ = pad([[first, *ids] for ids in targets], padding=model.start, device=device)
    logp = token_log_probabilities(model, source, source_keep, target_in, target_out)
    totals = logp.sum(1).tolist()
    return [
        Score(log_probability=total, num_tokens=n, score=total / n**length_penalty)
        for total, n in zip(totals, (len(ids) + 1 for ids in targets), strict=True)
    ]
