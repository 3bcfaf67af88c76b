"""A model whose next-token distribution is any function of source and prefix, so that search can be checked."""

import hashlib
import itertools

import pytest
import torch
from torch import nn


class PrefixCache:
    def __init__(self, sources):
        self.sources = sources
        self.entries = torch.zeros(len(sources), 0, dtype=torch.int64)

    def select(self, rows):
        self.sources = [self.sources[row] for row in rows.tolist()]
        self.entries = self.entries[rows]

    def retain(self, entries):
        self.entries = self.entries.gather(1, entries)


class PrefixModel(nn.Module):
    """Draws the logits of every (source, prefix) from a hash; prefixes are read back through the ancestry mask."""

    max_positions = None

    def __init__(self, num_ids, seed=0, sharpness=1.5):
        super().__init__()
        self.start, self.seed, self.sharpness = num_ids, seed, sharpness
        self.weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def logits(self, source, prefix):
        key = hashlib.sha256(repr((self.seed, source, prefix)).encode()).digest()[:7]
        generator = torch.Generator().manual_seed(int.from_bytes(key, "big"))
        draws = torch.randn(self.start, generator=generator, dtype=torch.float64)
        return draws * self.sharpness

    def encode(self, source, source_keep):
        keep = torch.ones_like(source, dtype=torch.bool) if source_keep is None else source_keep
        return [tuple(row[kept].tolist()) for row, kept in zip(source, keep, strict=True)]

    def begin(self, memory, source_keep):
        return PrefixCache(list(memory))

    def step(self, tokens, position, cache, keep):
        cache.entries = torch.cat([cache.entries, tokens], 1)
        assert keep is not None or cache.entries.shape[1] == position + 1
        rows = []
        for b, source in enumerate(cache.sources):
            for w in range(tokens.shape[1]):
                entries = cache.entries[b]
                prefix = tuple((entries if keep is None else entries[keep[b, w]]).tolist())
                assert len(prefix) == position + 1, "a hypothesis has one ancestor per step"
                assert prefix[-1] == tokens[b, w]
                rows.append(self.logits(source, prefix[1:]))
        return torch.stack(rows).view(*tokens.shape, -1)

    def forward(self, source, source_keep, target_in):
        sources = self.encode(source, source_keep)
        return torch.stack(
            [
                torch.stack([self.logits(s, tuple(row[1 : t + 1])) for t in range(len(row))])
                for s, row in zip(sources, target_in.tolist(), strict=True)
            ]
        )

    def every_output(self, source, limit):
        """Yield (tokens, log-probability) of every output of at most `limit` tokens."""
        for length in range(limit + 1):
            for tokens in itertools.product(range(1, self.start), repeat=length):
                total = 0.0
                for t, token in enumerate((*tokens, 0)):
                    total += float(self.logits(source, tokens[:t]).log_softmax(0)[token])
                yield list(tokens), total


@pytest.fixture
def prefix_model():
    return PrefixModel
