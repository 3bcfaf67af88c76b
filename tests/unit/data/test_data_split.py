import random
from collections import Counter

import numpy as np
import pytest

from deepnet.data.split import TRAIN, split_by_hash
from deepnet.errors import DataError

WANTED = {"valid": 30, "test": 20}


def _corpus(seed=0, size=2000):
    rng = random.Random(seed)
    # Every third sentence has several translations, so that groups of connected pairs arise.
    return [
        (f"quelle {rng.randrange(size * 2)}", f"target {rng.randrange(size * 2)}")
        for _ in range(size)
    ]


def test_sizes_are_as_wanted():
    parts = split_by_hash(_corpus(), wanted=WANTED)
    counts = Counter(parts.tolist())
    assert counts[0] == 30
    assert counts[1] == 20
    assert counts[TRAIN] == 1950


def test_no_sentence_is_in_two_parts():
    pairs = [(s.upper() + "!", t) if i % 2 else (s, t) for i, (s, t) in enumerate(_corpus())]
    parts = split_by_hash(pairs, wanted=WANTED)
    for side in (0, 1):
        where = {}
        for pair, part in zip(pairs, parts, strict=True):
            assert where.setdefault(pair[side].lower().strip("!"), part) == part


def test_order_of_the_file_does_not_matter():
    pairs = sorted(set(_corpus()))
    shuffled = random.Random(1).sample(pairs, len(pairs))
    first = dict(zip(pairs, split_by_hash(pairs, wanted=WANTED).tolist(), strict=True))
    second = dict(zip(shuffled, split_by_hash(shuffled, wanted=WANTED).tolist(), strict=True))
    assert first == second


def test_a_long_chain_is_one_group_and_stays_in_train():
    chain = [(f"s{i // 2}", f"t{(i + 1) // 2}") for i in range(1000)]
    others = [(f"einzeln {i}", f"single {i}") for i in range(1000)]
    parts = split_by_hash(chain + others, wanted=WANTED)
    assert (parts[:1000] == TRAIN).all()
    assert (parts[1000:] != TRAIN).sum() == 50


def test_at_most_a_twentieth_of_a_small_corpus():
    parts = split_by_hash(_corpus(size=100), wanted={"valid": 1000})
    assert (parts == 0).sum() == 5


@pytest.mark.parametrize("pairs", [[("same", "x")] * 500, [("a", "b")] * 3, []])
def test_what_cannot_be_split_is_refused(pairs):
    with pytest.raises(DataError, match="split"):
        split_by_hash(pairs, wanted=WANTED)


def test_result_is_a_small_array():
    assert split_by_hash(_corpus(), wanted=WANTED).dtype == np.int8


def _groups(size, number, name):
    """Rows in groups that share their target, with sources of their own."""
    return [
        (f"{name} {group} {i}", f"{name} {group}") for group in range(number) for i in range(size)
    ]


def test_a_group_is_at_most_a_tenth_of_its_part_and_no_part_is_larger_than_wanted():
    rows = _groups(3, 400, "drei") + _groups(4, 400, "vier")
    for wanted, held_out in ((30, 30), (32, 30), (33, 33)):  # whole groups of 3, none of 4
        parts = split_by_hash(rows, wanted={"valid": wanted})
        assert (parts[:1200] == 0).sum() == held_out
        assert (parts[1200:] == 0).sum() == 0


def test_a_large_group_is_as_likely_to_be_held_out_as_a_small_one():
    rows = _groups(1, 2000, "eins") + _groups(3, 2000, "drei")
    parts = split_by_hash(rows, wanted={"valid": 400})
    single, triple = (parts[:2000] == 0).sum(), (parts[2000:] == 0).sum() / 3
    # half of about 200 groups: one standard error is 0.035
    assert triple / (single + triple) == pytest.approx(0.5, abs=0.14)
