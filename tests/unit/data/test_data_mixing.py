import numpy as np
import pytest

from deepnet.data.mixing import draw, epoch_counts, sampling_rates
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


def test_draw_takes_every_pair_equally_often():
    indices = draw(10, 37, seed=1, epoch=2, corpus=3)
    times = np.bincount(indices, minlength=10)
    assert len(indices) == 37
    assert set(times.tolist()) == {3, 4}
    assert np.array_equal(indices, draw(10, 37, seed=1, epoch=2, corpus=3))
    assert not np.array_equal(indices, draw(10, 37, seed=1, epoch=3, corpus=3))


@pytest.mark.parametrize(("sizes", "temperature"), [([1, 2], 0), ([1, 0], 1), ([], 1)])
def test_impossible_mixes_are_refused(sizes, temperature):
    with pytest.raises(ConfigError):
        sampling_rates(sizes, temperature=temperature)
