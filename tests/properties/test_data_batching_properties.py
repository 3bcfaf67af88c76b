import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from deepnet.data.batching import BatchConfig, WindowSize, group_by_length, plan_updates

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=200)


class Corpus:
    def __init__(self, lengths):
        self.both = np.array(lengths)

    def __len__(self):
        return len(self.both)

    def lengths(self, start=0, stop=None):
        return self.both[start:stop, 0], self.both[start:stop, 1]


@settings(max_examples=50)
@given(LENGTHS, st.integers(40, 300))
def test_groups_hold_every_pair_once_within_the_budget(lengths, max_tokens):
    both = np.array(lengths)
    groups = group_by_length(both[:, 0], both[:, 1], max_tokens=max_tokens)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(lengths)))
    assert all(len(group) * both[group].max() <= max_tokens for group in groups)


@settings(max_examples=50)
@given(LENGTHS, st.integers(1, 5), st.integers(1, 20), st.integers(1, 4), st.integers(0, 3))
def test_an_epoch_holds_every_pair_once(lengths, micro_batches, block_rows, blocks, epoch):
    corpus = Corpus(lengths)
    config = BatchConfig(max_tokens=80, micro_batches_per_update=micro_batches)
    window = WindowSize(block_rows=block_rows, blocks=blocks)
    plan = list(plan_updates(corpus, config, seed=3, epoch=epoch, window=window))
    pairs = [i for update in plan for batch in update for i in batch.rows.tolist()]
    assert sorted(pairs) == list(range(len(lengths)))
    assert all(len(update) == micro_batches for update in plan[:-1])
    for update in plan:
        for batch in update:
            assert batch.lengths.tolist() == corpus.both[batch.rows, 1].tolist()
