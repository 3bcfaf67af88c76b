"""Sentences of a text as padded tensors, in batches of similar length."""

from collections.abc import Sequence

import torch
from torch import Tensor


def plan(lengths: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """Return the indices of the sentences, longest first, in batches of at most `max_tokens` with padding."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > max_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches


def pad(
    sentences: Sequence[Sequence[int]], *, padding: int, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Return the ids `[B, S]`, and `[B, S]` True where they are no padding (None where nothing is)."""
    longest = max(map(len, sentences))
    rows = [[*ids, *([padding] * (longest - len(ids)))] for ids in sentences]
    ids = torch.tensor(rows, device=device)
    if all(len(sentence) == longest for sentence in sentences):
        return ids, None
    lengths = torch.tensor([len(sentence) for sentence in sentences], device=device)
    return ids, torch.arange(longest, device=device) < lengths[:, None]
