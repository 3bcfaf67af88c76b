"""Random sampling with temperature, top-k and top-p: what happens between two steps of the model.

Each token is drawn by inverting the cumulative distribution at one uniform number. The numbers of a sentence come from
a generator of its own, seeded by (seed, line), so that neither the batch nor the other sentences have a say: with the
same device a line gives the same samples wherever it is translated, in 16 bits but for how each batch rounds.
`n_best` is the number of samples.

Letters of shapes: B sentences in the batch, W samples, V vocabulary without padding, C cached entries, L longest
output.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepnet.data.tokenizer import EOS
from deepnet.decoding.interface import DecodingConfig, Hypothesis


@dataclass
class Samples:
    """The samples of the sentences that are still in the batch."""

    config: DecodingConfig
    rows: Tensor  # [B] where each sentence stood in the batch at the start
    limits: Tensor  # [B] most tokens of an output
    tokens: Tensor  # [B, W] the newest token of each sample
    keep: Tensor | None  # [B, W, C] its own past among the cached entries; None: all
    totals: (
        Tensor  # [B, W] its log-probability under the model, before temperature, top-k and top-p
    )
    history: Tensor  # [B, W, L] its tokens, filled up with EOS
    uniforms: Tensor  # [B, W, L] in [0, 1), one per token
    ended: Tensor  # [B, W]

    @classmethod
    def begin(
        cls, start: int, limits: Tensor, config: DecodingConfig, lines: Sequence[int]
    ) -> "Samples":
        """Return the state before the first step; the draws of a sentence depend on the seed and its line only."""
        size, device = len(limits), limits.device
        shape = (config.n_best, int(limits.max()) + 1)
        return cls(
            config=config,
            rows=torch.arange(size, device=device),
            limits=limits,
            tokens=torch.full((size, 1), start, device=device),
            keep=None,
            totals=torch.zeros(size, config.n_best, device=device),
            history=torch.full((size, *shape), EOS, device=device),
            uniforms=_uniforms(config.seed, lines, shape).to(device),
            ended=torch.zeros(size, config.n_best, dtype=torch.bool, device=device),
        )

    def advance(self, logits: Tensor, position: int) -> Tensor:
        """Draw one token per sample, given logits `[B, 1 or W, V]`; return which sentences `[B]` are done."""
        tokens = draw(logits, self.uniforms[:, :, position], config=self.config)
        tokens = tokens.masked_fill(self.ended | (self.limits <= position)[:, None], EOS)
        dtype = torch.promote_types(logits.dtype, torch.float32)
        logp = torch.log_softmax(logits, -1, dtype=dtype).expand(-1, tokens.shape[1], -1)
        drawn = logp.gather(2, tokens[..., None])[..., 0]
        self.totals = self.totals + drawn.masked_fill(self.ended, 0.0)
        self.history[:, :, position] = tokens
        self.tokens, self.ended = tokens, self.ended | (tokens == EOS)
        self.keep = _own_past(tokens, position + 1) if tokens.shape[1] > 1 else None
        return self.ended.all(1)

    def results(self, rows: Tensor) -> list[list[Hypothesis]]:
        """Return the samples of the sentences `rows` `[R]`, most probable first."""
        samples = zip(self.history[rows].tolist(), self.totals[rows].tolist(), strict=True)
        return [
            sorted(
                (self._hypothesis(ids, total) for ids, total in zip(*sentence, strict=True)),
                key=lambda hypothesis: -hypothesis.score,
            )
            for sentence in samples
        ]

    def select(self, rows: Tensor) -> None:
        """Keep only the sentences `rows` `[R]`."""
        self.rows, self.limits, self.ended = self.rows[rows], self.limits[rows], self.ended[rows]
        self.tokens, self.totals = self.tokens[rows], self.totals[rows]
        self.history, self.uniforms = self.history[rows], self.uniforms[rows]
        self.keep = None if self.keep is None else self.keep[rows]

    def prune(self) -> None:
        """Return None: every sample needs all of its entries."""

    def _hypothesis(self, ids: list[int], total: float) -> Hypothesis:
        tokens = ids[: ids.index(EOS)]
        score = total / (len(tokens) + 1) ** self.config.length_penalty
        return Hypothesis(tokens=tokens, log_probability=total, score=score)


def draw(logits: Tensor, uniforms: Tensor, *, config: DecodingConfig) -> Tensor:
    """Return the ids `[B, W]` at which the cumulative distribution of `logits` `[B, 1 or W, V]` passes `uniforms`."""
    probabilities = torch.softmax(logits.double() / config.temperature, -1)
    if config.top_k or config.top_p < 1:
        probabilities = _restrict(probabilities, config.top_k, config.top_p)
    steps = probabilities.cumsum(-1).expand(-1, uniforms.shape[1], -1).contiguous()
    goal = uniforms[..., None].double() * steps[..., -1:]
    return torch.searchsorted(steps, goal, right=True)[..., 0]


def _restrict(probabilities: Tensor, top_k: int, top_p: float) -> Tensor:
    """Return `probabilities` `[..., V]` with 0 outside the top k, and outside the fewest that sum to top p."""
    ranked, order = probabilities.sort(stable=True, dim=-1, descending=True)
    dropped = ranked.cumsum(-1) - ranked >= top_p
    dropped[..., 0] = False
    if top_k:
        dropped[..., top_k:] = True
    return torch.zeros_like(ranked).scatter(-1, order, ranked.masked_fill(dropped, 0.0))


def _uniforms(seed: int, lines: Sequence[int], shape: tuple[int, int]) -> Tensor:
    """Return `[B, W, L]` numbers; the first tokens of a line do not depend on L, the longest limit of the batch."""
    draws = [np.random.default_rng([seed, line]).random(shape[::-1]).T for line in lines]
    return torch.from_numpy(np.stack(draws))


def _own_past(tokens: Tensor, steps: int) -> Tensor:
    """Return `[B, W, 1 + W * steps]`: the common start, and each sample's own entries."""
    size, width = tokens.shape
    own = torch.eye(width, dtype=torch.bool, device=tokens.device).repeat(1, steps)
    return torch.cat([own.new_ones(width, 1), own], 1).expand(size, -1, -1)
