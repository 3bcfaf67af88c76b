"""The loop of every search: encode once, one step of the model per token, finished sentences leave the batch."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from deepnet.decoding.beam import Beams
from deepnet.decoding.interface import (
    DecodingConfig,
    Hypothesis,
    TranslationModel,
    evaluating,
    length_limits,
    source_lengths,
)
from deepnet.decoding.sampling import Samples

_COMPACT_FRACTION = 1 / 8  # of the batch must have finished before the cache is copied without it


class _State(Protocol):
    """The hypotheses of the sentences that are still in the batch."""

    rows: Tensor  # [B] where each sentence stood in the batch at the start
    tokens: Tensor  # [B, W] the newest token of each hypothesis
    keep: Tensor | None  # [B, W, C] its ancestors among the cached entries; None: all

    def advance(self, logits: Tensor, position: int) -> Tensor: ...

    def results(self, rows: Tensor) -> list[list[Hypothesis]]: ...

    def select(self, rows: Tensor) -> None: ...

    def prune(self) -> Tensor | None: ...


@torch.no_grad()  # not inference_mode: a table of positions that grows here is also trained with
def search(
    model: TranslationModel,
    source: Tensor,
    source_keep: Tensor | None,
    *,
    config: DecodingConfig,
    lines: Sequence[int] | None = None,
    start: int | None = None,
) -> list[list[Hypothesis]]:
    """Return the n best outputs, best first, of each sentence of `source` `[B, S]` (each ending in the end id).

    `lines` `[B]` tells sampling which draws a sentence gets (its place in the batch where not given), so that its
    sample does not depend on the batch. `start` is the id that outputs start from, by default the model's own. Raises
    DataError where a sentence is longer than the model's positions.
    """
    limits = length_limits(model, source_lengths(source, source_keep), config=config)
    first = model.start if start is None else start
    state: _State
    if config.method == "beam":
        state = Beams.begin(first, limits, config)
    else:
        state = Samples.begin(first, limits, config, lines or range(len(source)))
    with evaluating(model):
        cache = model.begin(model.encode(source, source_keep), source_keep)
        return _run(model, cache, state)


def _run(model: TranslationModel, cache: Any, state: _State) -> list[list[Hypothesis]]:
    results: list[list[Hypothesis]] = [[] for _ in range(len(state.rows))]
    position = 0
    while len(state.rows):
        entries = state.prune()
        if entries is not None:
            cache.retain(entries)
        logits = model.step(state.tokens, position, cache, state.keep)
        _release(state, state.advance(logits, position), cache, results)
        position += 1
    return results


def _release(state: _State, done: Tensor, cache: Any, results: list[list[Hypothesis]]) -> None:
    """Hand over the finished sentences and drop them from the batch, once enough of them have gathered."""
    num_done = int(done.sum())  # the one synchronisation of a step
    if num_done < len(done) and num_done < max(1, _COMPACT_FRACTION * len(done)):
        return
    finished, others = done.nonzero()[:, 0], (~done).nonzero()[:, 0]
    rows = state.rows[finished].tolist()
    for row, hypotheses in zip(rows, state.results(finished), strict=True):
        results[row] = hypotheses
    state.select(others)
    if len(others):
        cache.select(others)
