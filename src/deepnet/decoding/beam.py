"""Beam search over a batch of sentences: what happens between two steps of the model.

The W open hypotheses of a sentence are W columns of one step. No key or value is ever copied when a hypothesis
branches: `keep` says which cached entries are its own ancestors. The W best continuations stay open (candidates that
end are set apart), and an ending is accepted when it is among the beam_size best of all continuations, as in fairseq
and Hugging Face. At its length limit a sentence's open hypotheses are ended. So every output ends with the end of the
sentence, and its score is that of `scoring`.

A sentence stops when beam_size hypotheses have finished (`early_stopping`), or, without changing any result, when
no open one could beat the n-th best finished one even if all its further tokens up to the limit were certain.

Letters of shapes: B sentences in the batch, W open hypotheses, K finished ones kept (at most beam_size), V vocabulary
without padding, C cached entries, L longest output.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from deepnet.data.tokenizer import EOS
from deepnet.decoding.interface import DecodingConfig, Hypothesis

_PRUNE_AT = 16  # cached entries before it is worth looking for those of dead hypotheses


@dataclass
class Beams:
    """The open and the finished hypotheses of the sentences that are still in the batch."""

    config: DecodingConfig
    rows: Tensor  # [B] where each sentence stood in the batch at the start
    limits: Tensor  # [B] most tokens of an output
    tokens: Tensor  # [B, W] the newest token of each open hypothesis
    keep: Tensor | None  # [B, W, C] its ancestors among the cached entries; None: all
    scores: Tensor  # [B, W] its log-probability, best first
    history: Tensor  # [B, W, L] its tokens, filled up with EOS
    done: Tensor  # [B] finished, but still in the batch
    finished_scores: Tensor  # [B, K] normalised, best first, -inf where there is none
    finished: Tensor  # [B, K, L] tokens, filled up with EOS
    prune_at: int = _PRUNE_AT  # cached entries at which those of dead hypotheses are dropped

    @classmethod
    def begin(cls, start: int, limits: Tensor, config: DecodingConfig) -> "Beams":
        """Return the state before the first step: one open hypothesis, nothing but `start`."""
        size, device = len(limits), limits.device
        history = torch.full((size, 1, int(limits.max()) + 1), EOS, device=device)
        return cls(
            config=config,
            rows=torch.arange(size, device=device),
            limits=limits,
            tokens=torch.full((size, 1), start, device=device),
            keep=None,
            scores=torch.zeros(size, 1, device=device),
            history=history,
            done=torch.zeros(size, dtype=torch.bool, device=device),
            finished_scores=torch.zeros(size, 0, device=device),
            finished=history[:, :0],
        )

    def advance(self, logits: Tensor, position: int) -> Tensor:
        """Extend every hypothesis by one token, given logits `[B, W, V]`; return which sentences `[B]` are done."""
        dtype = torch.promote_types(logits.dtype, torch.float32)
        totals = torch.log_softmax(logits, -1, dtype=dtype).add_(self.scores[..., None])
        endings = totals[..., EOS].clone()
        totals[..., EOS] = -torch.inf
        width = min(self.config.beam_size, totals[0].numel() - endings.shape[1])
        scores, places = totals.flatten(1).topk(width)
        self._finish(endings, scores, position)
        self._extend(scores, places // totals.shape[-1], places % totals.shape[-1], position)
        self.done = self.done | self._stopped(position)
        return self.done

    def results(self, rows: Tensor) -> list[list[Hypothesis]]:
        """Return the n best finished hypotheses of the sentences `rows` `[R]`."""
        scores = self.finished_scores[rows, : self.config.n_best].tolist()
        tokens = self.finished[rows, : self.config.n_best].tolist()
        pairs = (zip(*sentence, strict=True) for sentence in zip(tokens, scores, strict=True))
        return [
            [self._hypothesis(ids, score) for ids, score in sentence if score > -torch.inf]
            for sentence in pairs
        ]

    def select(self, rows: Tensor) -> None:
        """Keep only the sentences `rows` `[R]`."""
        self.rows, self.limits, self.done = self.rows[rows], self.limits[rows], self.done[rows]
        self.tokens, self.scores = self.tokens[rows], self.scores[rows]
        self.history, self.finished = self.history[rows], self.finished[rows]
        self.finished_scores = self.finished_scores[rows]
        self.keep = None if self.keep is None else self.keep[rows]

    def prune(self) -> Tensor | None:
        """Return the cached entries `[B, C']` that are still somebody's ancestor, now and then, where it pays."""
        if self.keep is None or self.keep.shape[2] < self.prune_at:
            return None
        past = (
            self.keep.shape[2] - self.tokens.shape[1]
        )  # the newest tokens are not in the cache yet
        alive = self.keep[:, :, :past].any(1)
        size = int(alive.sum(1).max())
        self.prune_at = 2 * size + _PRUNE_AT
        if size > 0.8 * past:
            return None
        entries = alive.byte().argsort(dim=1, descending=True, stable=True)[:, :size]
        kept = self.keep.gather(2, entries[:, None].expand(-1, self.keep.shape[1], -1))
        self.keep = torch.cat([kept, self.keep[:, :, past:]], 2)
        return entries

    def _finish(self, endings: Tensor, scores: Tensor, position: int) -> None:
        """Take up the endings `[B, W]` that are forced, or among the beam_size best of all continuations."""
        best = torch.cat([scores, endings], 1)
        threshold = best.topk(min(self.config.beam_size, best.shape[1])).values[:, -1:]
        forced = (self.limits == position)[:, None]
        accepted = ((endings >= threshold) | forced) & ~self.done[:, None]
        normalised = endings / (position + 1) ** self.config.length_penalty
        pool = torch.cat([self.finished_scores, normalised.where(accepted, -torch.inf)], 1)
        self.finished_scores, chosen = pool.topk(min(self.config.beam_size, pool.shape[1]))
        self.finished = _take(torch.cat([self.finished, self.history], 1), chosen)

    def _extend(self, scores: Tensor, parents: Tensor, tokens: Tensor, position: int) -> None:
        """Let the open hypotheses be `tokens` after `parents`, both `[B, W]`."""
        size, width = tokens.shape
        if width > 1 or self.keep is not None:
            keep = self.keep
            if keep is None:
                keep = self.done.new_ones(size, 1, position + 1)
            own = torch.eye(width, dtype=torch.bool, device=tokens.device).expand(size, -1, -1)
            self.keep = torch.cat([_take(keep, parents), own], 2)
        self.history = _take(self.history, parents)
        self.history[:, :, position] = tokens
        self.tokens, self.scores = tokens, scores

    def _stopped(self, position: int) -> Tensor:
        """Return which sentences `[B]` need no further step."""
        config, found = self.config, self.finished_scores.shape[1]
        stopped = self.limits <= position
        if found >= config.n_best:
            highest = self.scores[:, 0] / (self.limits + 1) ** config.length_penalty
            stopped = stopped | (self.finished_scores[:, config.n_best - 1] >= highest)
        if found == config.beam_size and (config.early_stopping or config.beam_size == 1):
            stopped = stopped | (self.finished_scores[:, -1] > -torch.inf)
        return stopped

    def _hypothesis(self, ids: list[int], score: float) -> Hypothesis:
        length = (ids.index(EOS) if EOS in ids else len(ids)) + 1
        total = score * length**self.config.length_penalty
        return Hypothesis(tokens=ids[: length - 1], log_probability=total, score=score)


def _take(items: Tensor, columns: Tensor) -> Tensor:
    """Return `[B, W, X]`: of `items` `[B, N, X]` the `columns` `[B, W]`."""
    return items.gather(1, columns[..., None].expand(-1, -1, items.shape[2]))
