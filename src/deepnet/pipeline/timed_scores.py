"""Score a finished model: translate and compare, as the end of a run and `evaluate` both do, or read a text."""

import time
from collections.abc import Sequence
from typing import Any

import torch

from deepnet.data.loader import Batch
from deepnet.decoding.interface import DecodingConfig
from deepnet.decoding.translate import Translator, translations
from deepnet.evaluation.perplexity import perplexity
from deepnet.evaluation.scores import corpus_scores
from deepnet.training.engine.precision import Precision
from deepnet.training.loss import validation_loss
from deepnet.transformer.models import Transformer


def timed_scores(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    config: DecodingConfig,
    tokenization: str | None = None,
) -> tuple[list[str], dict[str, Any]]:
    """Return the best translation of each line and their scores, with the seconds that translating took.

    `tokenization` is BLEU's; unset, the script of the references decides.
    """
    started = time.monotonic()
    best = [found[0].text for found in translations(translator, sources, config=config)]
    seconds = time.monotonic() - started
    return best, corpus_scores(best, references, tokenization=tokenization, seconds=seconds)


def timed_perplexity(
    model: Transformer, batches: Sequence[Batch], *, device: torch.device, precision: Precision
) -> dict[str, Any]:
    """Return the loss in nats per predicted token and its perplexity, with the counts and the seconds that it took."""
    started = time.monotonic()
    loss = validation_loss(model, batches, device=device, precision=precision)
    return {
        "loss": loss,
        "perplexity": perplexity(loss),
        "tokens": sum(batch.num_tokens for batch in batches),
        "sentences": sum(len(batch.source) for batch in batches),
        "seconds": time.monotonic() - started,
    }
