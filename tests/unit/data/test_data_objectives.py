"""What a model reads and is to predict, against the definitions written out."""

import itertools
import random

import numpy as np
import pytest
import torch

from deepnet.data.batching import BatchConfig
from deepnet.data.binarize import binarize
from deepnet.data.dataset import TextDataset
from deepnet.data.loader import UpdateLoader, validation_batches
from deepnet.data.objectives import MaskedTokens, NextToken
from deepnet.data.tokenizer import MASK_PIECE, TokenizerConfig, Tokenizers, train_tokenizer

WORDS = [f"w{i}" for i in range(30)]
LENGTHS = [1 + (7 * i) % 60 for i in range(300)]  # words per line: 1 to 60
LINES = [" ".join(random.Random(i).choices(WORDS, k=n)) for i, n in enumerate(LENGTHS)]
CONFIG = TokenizerConfig(kind="words", vocab_size=len(WORDS) + 4)


@pytest.fixture(scope="module")
def words():
    return train_tokenizer([" ".join(WORDS)], config=CONFIG, control_symbols=[MASK_PIECE])


@pytest.fixture(scope="module")
def dataset(tmp_path_factory, words):
    folder = tmp_path_factory.mktemp("data") / "x"
    rows = ((line,) for line in LINES)
    both = Tokenizers(words, words)
    binarize(rows, folder=folder, tokenizers=both, languages=("en",), max_length=99)
    return TextDataset(folder, tokenizers=both)


def _masked(words, seed=1):
    return MaskedTokens(mask=words.mask, seed=seed)


def _all(dataset, objective, epoch=0):
    return objective.batch(dataset, np.arange(len(dataset)), epoch=epoch)


def _seen(batches, dataset):
    """Return {line: (what is read, what is predicted)} without padding, of batches of unknown order."""
    found, pad = {}, dataset.header.sides[0].pad
    for batch in batches:
        for source, target in zip(batch.source.tolist(), batch.target_out.tolist(), strict=True):
            length = source.index(0) + 1  # eos is never masked in a line of words
            whole = [s if t == pad else t for s, t in zip(source, target, strict=True)][:length]
            seen = (tuple(source[:length]), tuple(target[:length]))
            found.setdefault(tuple(whole), []).append(seen)
    return {line: sorted(seen) for line, seen in found.items()}


def test_the_next_token_is_the_line_one_place_earlier(dataset, words):
    batch = NextToken().batch(dataset, np.array([0, 2]), epoch=3)  # 1 and 15 words
    first, second = ([*ids, 0] for ids in words.encode([LINES[0], LINES[2]]))
    assert batch.target_out.tolist() == [first + [words.pad] * 14, second]
    assert batch.source[:, 0].tolist() == [0, 0]
    assert torch.equal(batch.source[:, 1:], batch.target_out[:, :-1])
    assert (batch.source_keep, batch.target_in) == (None, None)
    assert batch.num_tokens == batch.num_source_tokens == 2 + 16


@pytest.mark.parametrize("words_in_line", [1, 3, 4, 9, 10, 11, 40, 60])
def test_15_percent_of_a_lines_tokens_are_predicted_and_at_least_one(dataset, words, words_in_line):
    row = LENGTHS.index(words_in_line)
    batch = _masked(words).batch(dataset, np.array([row]), epoch=0)
    expected = max(1, round(0.15 * words_in_line))
    assert int((batch.target_out != words.pad).sum()) == batch.num_tokens == expected
    assert _masked(words).num_tokens(np.array([words_in_line + 1])) == expected


def test_only_predicted_tokens_change_and_eos_is_not_one(dataset, words):
    batch = _all(dataset, _masked(words))
    line = NextToken().batch(dataset, np.arange(len(dataset)), epoch=0).target_out
    chosen = batch.target_out != words.pad
    assert torch.equal(batch.source[~chosen], line[~chosen])
    assert torch.equal(batch.target_out[chosen], line[chosen])
    assert torch.equal(batch.source_keep, line != words.pad)
    assert not chosen[line == 0].any()


def test_80_10_10_and_every_place_and_token_alike(dataset, words):
    """Over 60 epochs; bounds are five standard deviations of the binomial."""
    kinds = {"mask": 0, "same": 0, "other": 0}
    places, replaced = np.zeros(60), np.zeros(words.vocab_size)
    for epoch in range(60):
        batch = _all(dataset, _masked(words), epoch)
        chosen = batch.target_out != words.pad
        read, true = batch.source[chosen], batch.target_out[chosen]
        kinds["mask"] += int((read == words.mask).sum())
        kinds["same"] += int((read == true).sum())
        kinds["other"] += int(((read != words.mask) & (read != true)).sum())
        places += chosen[np.array(LENGTHS) == 60].sum(0).numpy()[:60]
        replaced += np.bincount(
            read[(read != words.mask) & (read != true)], minlength=len(replaced)
        )
    total = sum(kinds.values())
    ids = len(WORDS)
    for kind, share in (("mask", 0.8), ("same", 0.1 + 0.1 / ids), ("other", 0.1 - 0.1 / ids)):
        assert abs(kinds[kind] - share * total) < 5 * (total * share * (1 - share)) ** 0.5
    assert places.sum() == 9 * 60 * LENGTHS.count(60)
    assert places.min() > places.mean() - 5 * places.mean() ** 0.5
    special = [0, 1, words.mask, words.pad]
    assert replaced[special].sum() == 0
    assert np.count_nonzero(replaced) == ids


def test_masks_depend_on_seed_epoch_and_line_alone(dataset, words):
    objective = _masked(words)
    together = _all(dataset, objective, 4)
    for row in (0, 17, 299):
        alone = objective.batch(dataset, np.array([row]), epoch=4)
        width = alone.source.shape[1]
        assert torch.equal(alone.source[0], together.source[row, :width])
        assert torch.equal(alone.target_out[0], together.target_out[row, :width])
    for other in (_all(dataset, objective, 5), _all(dataset, _masked(words, seed=2), 4)):
        assert (other.target_out != together.target_out).any(1).float().mean() > 0.8


def _updates(dataset, objective, micro_batches=6, rank=0, world_size=1):
    config = BatchConfig(max_tokens=200, micro_batches_per_update=micro_batches)
    loader = UpdateLoader(
        dataset, config, objective=objective, seed=3, rank=rank, world_size=world_size
    )
    return list(loader.updates(1))


def test_accumulation_and_processes_change_who_predicts_not_what(dataset, words):
    few, many = (_updates(dataset, _masked(words), number) for number in (2, 6))
    ranks = [_updates(dataset, _masked(words), 6, rank, 3) for rank in range(3)]
    assert len(few) > len(many)
    seen = [
        _seen([batch for update in updates for batch in update.batches], dataset)
        for updates in (few, many, itertools.chain(*ranks))
    ]
    assert len(seen[0]) > 100
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("kind", ["next", "masked"])
def test_every_process_knows_how_much_all_predict(dataset, words, kind):
    objective = NextToken() if kind == "next" else _masked(words)
    ranks = [_updates(dataset, objective, rank=rank, world_size=3) for rank in range(3)]
    for shares in zip(*ranks, strict=True):
        predicted = sum(
            int((batch.target_out != words.pad).sum())
            for share in shares
            for batch in share.batches
        )
        assert {share.num_tokens for share in shares} == {predicted}


def test_validation_masks_are_always_the_same(dataset, words):
    first, second = (
        validation_batches(dataset, objective=_masked(words), max_tokens=200) for _ in range(2)
    )
    assert sum(len(batch.source) for batch in first) == len(dataset)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.source, b.source)
        assert torch.equal(a.target_out, b.target_out)


def test_a_line_that_has_no_token_predicts_its_end(tmp_path, words):
    both = Tokenizers(words, words)
    binarize([("",)], folder=tmp_path / "x", tokenizers=both, languages=("en",), max_length=9)
    batch = _all(TextDataset(tmp_path / "x"), _masked(words))
    assert batch.target_out.tolist() == [[0]]
    assert batch.num_tokens == _masked(words).num_tokens(np.array([1])) == 1


def test_no_text_is_ever_split_into_the_mask(words):
    assert words.mask not in words.encode([f"w1 {MASK_PIECE} w2"])[0]
    assert words.mask == 2
    assert (
        train_tokenizer([" ".join(WORDS)], config=CONFIG.model_copy(update={"vocab_size": 33})).mask
        is None
    )
