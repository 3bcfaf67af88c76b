"""Temperature sampling over language pairs: how often each is seen, and where in it an epoch begins."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from deepnet.errors import ConfigError


def sampling_rates(sizes: Sequence[int], *, temperature: float) -> NDArray[np.float64]:
    """Return the share of each corpus, p_l = (n_l / sum n)^(1/T), normalised.

    T = 1 keeps the natural shares, a large T makes them equal. Source: Arivazhagan et al., Massively Multilingual
    Neural Machine Translation in the Wild, arXiv 1907.05019, section 4.2. Raises ConfigError for T <= 0 or no pairs.
    """
    counts = np.asarray(sizes, dtype=np.float64)
    if temperature <= 0:
        raise ConfigError(f"'temperature' is {temperature}; it must be greater than 0")
    if len(counts) == 0 or counts.min() <= 0:
        raise ConfigError(f"corpora of {list(sizes)} pairs cannot be mixed; each must have some")
    rates = (counts / counts.sum()) ** (1 / temperature)
    return np.asarray(rates / rates.sum())


def epoch_counts(sizes: Sequence[int], *, temperature: float, total: int) -> list[int]:
    """Return how many of `total` pairs each corpus gives, rounded so that they add up (largest remainder)."""
    exact = sampling_rates(sizes, temperature=temperature) * total
    counts = np.floor(exact).astype(int)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return [int(count) for count in counts]


def epoch_start(size: int, count: int, *, seed: int, epoch: int, corpus: int) -> int:
    """Return the row of a corpus of `size` pairs from which an epoch takes `count`, going round it.

    It is where the epoch before stopped, and in the first a random one: all pairs are seen equally often, or once more.
    """
    first = int(np.random.default_rng([seed, corpus]).integers(size))
    return (first + epoch * count) % size
