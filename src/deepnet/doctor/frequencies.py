"""The loss of a model that knows how often each token comes, and nothing else."""

import torch
from torch import Tensor


def frequency_loss(targets: list[Tensor], *, num_ids: int, label_smoothing: float) -> float:
    """Return the least smoothed cross-entropy, in nats per token, of any one distribution for all `targets`.

    Ids of `num_ids` and above are padding. The loss of predicting r everywhere is -sum q log r with
    q = (1 - e) p + e / num_ids, p the frequencies and e the smoothing; its least value is the entropy of q.
    """
    ids = torch.cat([target.flatten() for target in targets])
    counts = torch.bincount(ids[ids < num_ids], minlength=num_ids).double()
    smoothed = (1 - label_smoothing) * counts / counts.sum() + label_smoothing / num_ids
    return float(-torch.xlogy(smoothed, smoothed).sum())
