import hashlib
import random
from collections import Counter

import numpy as np
import pytest

from deepnet.data import sorting
from deepnet.data.keys import sentence_keys
from deepnet.data.split import LEFT_OUT, TRAIN, split_by_hash
from deepnet.errors import DataError

WANTED = {"valid": 30, "test": 20}


@pytest.fixture(params=[7, 1 << 17], ids=["many buckets", "one bucket"])
def split(request, tmp_path, monkeypatch):
    """The part of each pair."""
    monkeypatch.setattr(sorting, "BLOCK_RECORDS", request.param)

    def parts_of(pairs, *, wanted, left_out=()):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        sides = [sentence_keys(side) for side in zip(*pairs, strict=True)] or [[], []]
        (folder / "keys").write_bytes(np.stack(sides, axis=1).astype("<u8").tobytes())
        parts = np.full(len(pairs), TRAIN, dtype=np.int8)
        parts[list(left_out)] = LEFT_OUT
        sizes = split_by_hash(folder / "keys", parts, wanted=wanted)
        assert sizes == {name: (parts == i).sum() for i, name in enumerate(wanted)}
        return parts

    return parts_of


def _corpus(seed=0, size=2000):
    rng = random.Random(seed)
    # Every third sentence has several translations, so that groups of connected pairs arise.
    return [
        (f"quelle {rng.randrange(size * 2)}", f"target {rng.randrange(size * 2)}")
        for _ in range(size)
    ]


def test_sizes_are_as_wanted(split):
    parts = split(_corpus(), wanted=WANTED)
    counts = Counter(parts.tolist())
    assert counts[0] == 30
    assert counts[1] == 20
    assert counts[TRAIN] == 1950


def test_no_sentence_is_in_two_parts(split):
    pairs = [(s.upper() + "!", t) if i % 2 else (s, t) for i, (s, t) in enumerate(_corpus())]
    parts = split(pairs, wanted=WANTED)
    for side in (0, 1):
        where = {}
        for pair, part in zip(pairs, parts, strict=True):
            assert where.setdefault(pair[side].lower().strip("!"), part) == part


def test_order_of_the_file_does_not_matter(split):
    pairs = sorted(set(_corpus()))
    shuffled = random.Random(1).sample(pairs, len(pairs))
    first = dict(zip(pairs, split(pairs, wanted=WANTED).tolist(), strict=True))
    second = dict(zip(shuffled, split(shuffled, wanted=WANTED).tolist(), strict=True))
    assert first == second


def test_a_long_chain_is_one_group_and_stays_in_train(split):
    chain = [(f"s{i // 2}", f"t{(i + 1) // 2}") for i in range(1000)]
    others = [(f"einzeln {i}", f"single {i}") for i in range(1000)]
    parts = split(chain + others, wanted=WANTED)
    assert (parts[:1000] == TRAIN).all()
    assert (parts[1000:] != TRAIN).sum() == 50


def test_at_most_a_twentieth_of_a_small_corpus(split):
    parts = split(_corpus(size=100), wanted={"valid": 1000})
    assert (parts == 0).sum() == 5


@pytest.mark.parametrize("pairs", [[("same", "x")] * 500, [("a", "b")] * 3, []])
def test_what_cannot_be_split_is_refused(split, pairs):
    with pytest.raises(DataError, match="split"):
        split(pairs, wanted=WANTED)


def _groups(size, number, name):
    """Rows in groups that share their target, with sources of their own."""
    return [
        (f"{name} {group} {i}", f"{name} {group}") for group in range(number) for i in range(size)
    ]


def test_a_group_is_at_most_a_tenth_of_its_part_and_no_part_is_larger_than_wanted(split):
    rows = _groups(3, 400, "drei") + _groups(4, 400, "vier")
    for wanted, held_out in ((30, 30), (32, 30), (33, 33)):  # whole groups of 3, none of 4
        parts = split(rows, wanted={"valid": wanted})
        assert (parts[:1200] == 0).sum() == held_out
        assert (parts[1200:] == 0).sum() == 0


def test_a_large_group_is_as_likely_to_be_held_out_as_a_small_one(split):
    rows = _groups(1, 2000, "eins") + _groups(3, 2000, "drei")
    parts = split(rows, wanted={"valid": 400})
    single, triple = (parts[:2000] == 0).sum(), (parts[2000:] == 0).sum() / 3
    # half of about 200 groups: one standard error is 0.035
    assert triple / (single + triple) == pytest.approx(0.5, abs=0.14)


@pytest.mark.parametrize("seed", range(8))
def test_groups_are_those_of_a_search_through_the_whole_corpus(split, seed):
    rng = random.Random(seed)
    sentences = rng.choice([40, 400, 1500, 4000])
    pairs = [
        (f"quelle {rng.randrange(sentences)}", f"target {rng.randrange(sentences)}")
        for _ in range(1500)
    ]
    left_out = rng.sample(range(1500), 200)
    expected = _searched(pairs, WANTED, set(left_out))
    if expected is None:
        with pytest.raises(DataError, match="share too many"):
            split(pairs, wanted=WANTED, left_out=left_out)
    else:
        assert split(pairs, wanted=WANTED, left_out=left_out).tolist() == expected


def _searched(pairs, wanted, left_out):
    """The parts, from all groups at once: in the order of their lowest source hash, times a constant."""
    kept = [row for row in range(len(pairs)) if row not in left_out]
    parts = [LEFT_OUT if row in left_out else TRAIN for row in range(len(pairs))]
    order = sorted(_connected(pairs, kept), key=lambda group: _place(pairs, group))
    for index, number in enumerate(wanted.values()):
        limit = room = min(number, len(kept) // 20)
        while room and order:
            group = order.pop(0)
            if len(group) <= min(room, max(limit // 10, 1)):
                room -= len(group)
                for row in group:
                    parts[row] = index
        if room == limit:
            return None
    return parts


def _connected(pairs, rows):
    groups = {}
    for row in rows:
        sides = [(side, pairs[row][side]) for side in (0, 1)]
        joined = {row}.union(*(groups.get(side, set()) for side in sides))
        for other in joined:
            for side in (0, 1):
                groups[side, pairs[other][side]] = joined
    return {id(group): group for group in groups.values()}.values()


def _place(pairs, group):
    hashes = (hashlib.blake2b(pairs[row][0].encode(), digest_size=8).digest() for row in group)
    lowest = min(int.from_bytes(digest, "little") for digest in hashes)
    return lowest * 0x9E3779B97F4A7C15 % 2**64


def test_the_lowest_key_names_a_group_however_many_rows_have_it(split):
    pairs = [("dieselbe", f"other {i}") for i in range(300)]
    pairs += [(f"einzeln {i}", f"single {i}") for i in range(1000)]
    parts = split(pairs, wanted=WANTED)
    assert (parts[:300] == TRAIN).all()
    assert (parts[300:] == 0).sum() == 30
