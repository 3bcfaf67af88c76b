import torch
from hypothesis import given
from hypothesis import strategies as st

from deepnet.decoding.batches import pad, plan


@given(st.lists(st.integers(1, 30), max_size=60), st.integers(30, 100))
def test_batches_hold_every_sentence_once_within_the_budget(lengths, max_tokens):
    batches = plan(lengths, max_tokens=max_tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(
        len(batch) * max(lengths[index] for index in batch) <= max_tokens for batch in batches
    )


def test_padding_is_marked():
    ids, keep = pad([[5, 0], [4, 3, 0]], padding=9, device=torch.device("cpu"))
    assert ids.tolist() == [[5, 0, 9], [4, 3, 0]]
    assert keep.tolist() == [[True, True, False], [True, True, True]]


def test_no_mask_where_nothing_is_padding():
    ids, keep = pad([[5, 0], [4, 0]], padding=9, device=torch.device("cpu"))
    assert ids.tolist() == [[5, 0], [4, 0]]
    assert keep is None
