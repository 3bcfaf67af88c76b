"""Translate and score in one step, as the end of a run and `evaluate` both do."""

import time
from collections.abc import Sequence
from typing import Any

from deepnet.decoding.interface import DecodingConfig
from deepnet.decoding.translate import Translator, translations
from deepnet.evaluation.scores import corpus_scores


def timed_scores(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    config: DecodingConfig,
) -> tuple[list[str], dict[str, Any]]:
    """Return the best translation of each line and their scores, with the seconds that translating took."""
    started = time.monotonic()
    best = [found[0].text for found in translations(translator, sources, config=config)]
    seconds = time.monotonic() - started
    return best, corpus_scores(best, references, seconds=seconds)
