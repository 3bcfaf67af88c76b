import time

import numpy as np
import pytest

from deepnet.data import batching
from deepnet.data.batching import (
    BatchConfig,
    WindowSize,
    count_updates,
    group_by_length,
    plan_updates,
)


class Corpus:
    def __init__(self, size=1000, seed=0):
        random = np.random.default_rng(seed)
        self.source = random.integers(2, 30, size)
        self.target = np.clip(self.source + random.integers(-4, 5, size), 2, 30)

    def __len__(self):
        return len(self.source)

    def lengths(self, start=0, stop=None):
        return self.source[start:stop], self.target[start:stop]


CONFIG = BatchConfig(max_tokens=256, micro_batches_per_update=4)
SMALL = WindowSize(block_rows=50, blocks=4)


def _plan(corpus, config=CONFIG, **options):
    options = {"seed": 1, "epoch": 0} | options
    return list(plan_updates(corpus, config, **options))


def _pairs(plan):
    return [tuple(tuple(batch.rows.tolist()) for batch in update) for update in plan]


def test_groups_are_the_fullest_possible_by_hand():
    # Sorted by longest side: 2, 3, 5, 5, 9; a budget of 10 holds 2 x 3, then 2 x 5, then the 9 alone.
    groups = group_by_length(np.array([5, 2, 9, 1, 5]), np.array([4, 1, 3, 3, 1]), max_tokens=10)
    assert [sorted(group.tolist()) for group in groups] == [[1, 3], [0, 4], [2]]


def test_a_pair_longer_than_the_budget_stands_alone():
    groups = group_by_length(np.array([3, 20, 3]), np.array([3, 3, 3]), max_tokens=6)
    assert [sorted(group.tolist()) for group in groups] == [[0, 2], [1]]


def test_same_seed_and_epoch_same_plan_and_others_differ():
    corpus = Corpus()
    assert _pairs(_plan(corpus)) == _pairs(_plan(corpus))
    assert _pairs(_plan(corpus)) != _pairs(_plan(corpus, epoch=1))
    assert _pairs(_plan(corpus)) != _pairs(_plan(corpus, seed=2))


def test_micro_batches_differ_between_epochs():
    """The sentences beside a sentence change, not only the order of the batches."""
    corpus = Corpus()
    first, second = (
        {batch for update in _pairs(_plan(corpus, epoch=e)) for batch in map(frozenset, update)}
        for e in (0, 1)
    )
    assert len(first & second) < 0.1 * len(first)


def test_leftovers_join_the_last_update():
    sizes = [len(update) for update in _plan(Corpus(), window=SMALL)]
    assert set(sizes[:-1]) == {4}
    assert 4 <= sizes[-1] < 8


def test_an_epoch_smaller_than_one_update_is_one_update():
    plan = _plan(Corpus(size=3), BatchConfig(max_tokens=30, micro_batches_per_update=16))
    assert len(plan) == 1
    assert sorted(i for batch in plan[0] for i in batch.rows) == [0, 1, 2]


def test_little_is_padding():
    corpus = Corpus(size=5000)
    padded = real = 0
    for update in _plan(corpus, BatchConfig(max_tokens=1024)):
        for batch in update:
            padded += len(batch.rows) * (
                corpus.source[batch.rows].max() + corpus.target[batch.rows].max()
            )
            real += int((corpus.source + corpus.target)[batch.rows].sum())
    assert real / padded > 0.9


def test_count_is_exact_then_an_estimate(monkeypatch):
    corpus = Corpus(size=4000)
    exact = len(_plan(corpus))
    assert count_updates(corpus, CONFIG, seed=1, epoch=0) == exact
    monkeypatch.setattr(batching, "_COUNTED_ROWS", 100)
    assert count_updates(corpus, CONFIG, seed=1, epoch=0) == pytest.approx(exact, rel=0.05)


def test_planning_a_million_pairs_takes_seconds():
    start = time.monotonic()
    corpus = Corpus(size=1_000_000)
    plan = _plan(corpus, BatchConfig(max_tokens=4096))
    assert sum(len(batch.rows) for update in plan for batch in update) == 1_000_000
    assert time.monotonic() - start < 10


def _windows(**options):
    """The rows of each window of a corpus, and their order within it, window by window in the order of the plan."""
    corpus = Corpus()
    corpus.source[:] = corpus.target[:] = 5  # one length, so that only chance decides
    config = BatchConfig(max_tokens=5 * 200, micro_batches_per_update=1)
    plan = _plan(corpus, config, window=WindowSize(block_rows=200, blocks=1), **options)
    rows = np.concatenate([batch.rows for update in plan for batch in update]).reshape(5, 200)
    assert all(len(set((window // 200).tolist())) == 1 for window in rows)
    return rows[:, 0] // 200, rows % 200


def test_the_order_of_windows_differs_between_epochs_and_seeds():
    orders = [
        _windows(seed=seed, epoch=epoch)[0].tolist() for seed in (1, 2, 3) for epoch in (0, 1, 2)
    ]
    assert len(set(map(tuple, orders))) > 6  # of 120 orders
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders)


def test_each_window_is_shuffled_in_its_own_way():
    _, places = _windows()
    assert len({tuple(window.tolist()) for window in places}) == 5


def test_an_estimate_looks_at_one_window_and_scales_it_up(monkeypatch):
    corpus = Corpus(size=4000)
    exact = len(_plan(corpus))
    monkeypatch.setattr(batching, "_COUNTED_ROWS", 100)
    monkeypatch.setattr(batching, "WindowSize", lambda: WindowSize(block_rows=500, blocks=2))
    found = count_updates(corpus, CONFIG, seed=1, epoch=0)
    assert found == pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize(
    ("rows", "per_update", "updates"),
    [
        (2000, 1, 20),  # a window of 1,000 rows has 10 micro-batches
        (2000, 8, 2),  # two and a half
        (2000, 40, 1),  # half of one
    ],
)
def test_an_estimate_is_the_updates_that_are_full_and_at_least_one(
    monkeypatch, rows, per_update, updates
):
    corpus = Corpus(size=rows)
    corpus.source[:] = corpus.target[:] = 5
    monkeypatch.setattr(batching, "_COUNTED_ROWS", 100)
    monkeypatch.setattr(batching, "WindowSize", lambda: WindowSize(block_rows=1000, blocks=1))
    config = BatchConfig(max_tokens=500, micro_batches_per_update=per_update)
    found = count_updates(corpus, config, seed=1, epoch=0)
    assert (found, type(found)) == (updates, int)


def test_rows_of_equal_lengths_keep_their_order_and_both_sides_are_sorted():
    source, target = np.array([3, 3, 2, 3, 3]), np.array([2, 1, 3, 2, 1])
    (group,) = group_by_length(source, target, max_tokens=100)
    # the longest side is 3 everywhere; then by target, then by source, then as they came
    assert group.tolist() == [1, 4, 0, 3, 2]


def test_micro_batches_come_in_random_order_not_by_length():
    """Sorted by length, an epoch would begin with short sentences and the loss would follow the length."""
    corpus = Corpus(size=5000)
    longest = [
        np.maximum(corpus.source, corpus.target)[batch.rows].max()
        for update in _plan(corpus)
        for batch in update
    ]
    changes = np.sign(np.diff(longest))
    # in random order as many rise as fall; one standard error of the share is below 0.05 at 100 changes and more
    assert (changes != 0).sum() > 100
    assert (changes > 0).sum() / (changes != 0).sum() == pytest.approx(0.5, abs=0.15)
