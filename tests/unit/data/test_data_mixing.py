import numpy as np
import pytest

from deepnet.data.mixing import epoch_counts, epoch_start, sampling_rates
from deepnet.errors import ConfigError


def test_rates_follow_the_formula():
    # n = (1, 16): with T = 2 the shares are as 1 : 4; with T = 4 as 1 : 2.
    assert sampling_rates([1, 16], temperature=1) == pytest.approx([1 / 17, 16 / 17])
    assert sampling_rates([1, 16], temperature=2) == pytest.approx([1 / 5, 4 / 5])
    assert sampling_rates([1, 16], temperature=4) == pytest.approx([1 / 3, 2 / 3])


def test_large_temperature_evens_out():
    assert sampling_rates([3, 1000, 50], temperature=1e9) == pytest.approx([1 / 3] * 3)


def test_counts_add_up():
    assert epoch_counts([10, 10, 10], temperature=1, total=100) == [34, 33, 33]
    assert sum(epoch_counts([7, 1300, 99], temperature=5, total=12345)) == 12345


def test_epochs_go_round_a_corpus_so_that_all_its_pairs_are_seen_equally_often():
    times = np.zeros(10, int)
    for epoch in range(7):
        start = epoch_start(10, 37, seed=1, epoch=epoch, corpus=3)
        np.add.at(times, (start + np.arange(37)) % 10, 1)
        assert times.max() - times.min() <= 1
    assert times.sum() == 7 * 37
    firsts = {epoch_start(1000, 37, seed=seed, epoch=0, corpus=3) for seed in range(20)}
    assert len(firsts) > 15


@pytest.mark.parametrize(("sizes", "temperature"), [([1, 2], 0), ([1, 0], 1), ([], 1)])
def test_impossible_mixes_are_refused(sizes, temperature):
    with pytest.raises(ConfigError):
        sampling_rates(sizes, temperature=temperature)
