import numpy as np
import pytest
import torch

from deepnet.data.batching import BatchConfig
from deepnet.data.binarize import binarize
from deepnet.data.dataset import TextDataset
from deepnet.data.loader import UpdateLoader, validation_batches
from deepnet.data.objectives import Translation
from deepnet.data.tokenizer import TokenizerConfig, Tokenizers, train_tokenizer
from deepnet.errors import ConfigError

PAIRS = [(" ".join("ab" * (1 + i % 5)), " ".join("cde" * (1 + i * i % 4))) for i in range(97)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    words = train_tokenizer(["a b c d e"], config=TokenizerConfig(kind="words", vocab_size=8))
    folder = tmp_path_factory.mktemp("data") / "x"
    both = Tokenizers(words, words)
    binarize(PAIRS, folder=folder, tokenizers=both, languages=("s", "t"), max_length=50)
    return TextDataset(folder)


def _loader(dataset, *, rank=0, world_size=1, micro_batches=4):
    config = BatchConfig(max_tokens=60, micro_batches_per_update=micro_batches)
    return UpdateLoader(
        dataset, config, objective=Translation(), seed=7, rank=rank, world_size=world_size
    )


def _batch(dataset, rows):
    return Translation().batch(dataset, np.array(rows), epoch=0)


def _same(left, right):
    for a, b in zip(left.batches, right.batches, strict=True):
        assert torch.equal(a.source, b.source)
        assert torch.equal(a.target_out, b.target_out)
    assert left.num_tokens == right.num_tokens


def test_a_batch_by_hand(dataset):
    pad = dataset.header.sides[1].pad
    batch = _batch(dataset, [0, 3])  # "a b" -> "c d e"; "a b" x 4 -> "c d e" x 2
    (s0, t0), (s3, t3) = ((s.tolist(), t.tolist()) for s, t in (dataset[0], dataset[3]))
    assert batch.source.tolist() == [s0 + [pad] * 6, s3]
    assert batch.source_keep.tolist() == [[True] * 3 + [False] * 6, [True] * 9]
    assert batch.target_out.tolist() == [t0 + [pad] * 3, t3]
    assert batch.target_in[:, 0].tolist() == [pad, pad]
    assert torch.equal(batch.target_in[:, 1:], batch.target_out[:, :-1])
    assert batch.num_tokens == 4 + 7
    assert batch.num_source_tokens == 3 + 9
    assert batch.source.dtype == batch.target_in.dtype == batch.target_out.dtype == torch.int64


def test_no_mask_when_nothing_is_padding(dataset):
    assert _batch(dataset, [0, 5]).source_keep is None


def test_to_moves_every_tensor(dataset):
    moved = _batch(dataset, [0, 3]).to("meta")
    tensors = (moved.source, moved.source_keep, moved.target_in, moved.target_out)
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert _batch(dataset, [0]).to("cpu").source_keep is None


def test_an_epoch_has_every_token_and_the_number_of_updates_said(dataset):
    loader = _loader(dataset)
    updates = list(loader.updates(0))
    assert len(updates) == loader.updates_per_epoch(0)
    assert sum(update.num_tokens for update in updates) == dataset.header.sides[1].tokens
    for update in updates:
        assert update.num_tokens == sum(batch.num_tokens for batch in update.batches)
        for batch in update.batches:
            longest = max(batch.source.shape[1], batch.target_in.shape[1])
            assert batch.source.shape[0] * longest <= 60


@pytest.mark.parametrize("start", [0, 1, 2])
def test_resuming_gives_the_same_updates(dataset, start):
    loader = _loader(dataset)
    whole = list(loader.updates(2))
    rest = list(loader.updates(2, start))
    assert len(rest) == len(whole) - start
    for left, right in zip(whole[start:], rest, strict=True):
        _same(left, right)
    assert list(loader.updates(2, len(whole))) == []


def test_resuming_builds_nothing_before_the_start(dataset, monkeypatch):
    read = []
    original = TextDataset.padded
    monkeypatch.setattr(
        TextDataset, "padded", lambda self, rows: read.extend(rows) or original(self, rows)
    )
    update = next(_loader(dataset).updates(0, 2))
    assert len(read) == sum(batch.source.shape[0] for batch in update.batches)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_processes_share_what_one_would_compute(dataset, world_size):
    alone = list(_loader(dataset).updates(1))
    ranks = [
        list(_loader(dataset, rank=rank, world_size=world_size).updates(1))
        for rank in range(world_size)
    ]
    for number, update in enumerate(alone):
        dealt = [
            ranks[i % world_size][number].batches[i // world_size]
            for i in range(len(update.batches))
        ]
        for mine, theirs in zip(update.batches, dealt, strict=True):
            assert torch.equal(mine.source, theirs.source)
        assert {rank[number].num_tokens for rank in ranks} == {update.num_tokens}
        assert all(rank[number].batches for rank in ranks)


def test_fewer_micro_batches_than_processes_is_refused(dataset):
    with pytest.raises(ConfigError, match="micro_batches_per_update' is 2, fewer than the 3"):
        _loader(dataset, world_size=3, micro_batches=2)
    config = BatchConfig(max_tokens=100_000, micro_batches_per_update=8)
    with pytest.raises(ConfigError, match="whole corpus"):
        next(
            UpdateLoader(dataset, config, objective=Translation(), seed=1, world_size=8).updates(0)
        )


def test_a_sentence_longer_than_the_budget_is_refused(dataset):
    with pytest.raises(
        ConfigError, match=r"'batching.max_tokens' is 10, but the longest sentence has 11"
    ):
        UpdateLoader(dataset, BatchConfig(max_tokens=10), objective=Translation(), seed=1)


def test_validation_is_whole_and_fixed(dataset):
    first, second = (
        validation_batches(dataset, objective=Translation(), max_tokens=60) for _ in range(2)
    )
    assert sum(batch.num_tokens for batch in first) == dataset.header.sides[1].tokens
    assert sum(batch.source.shape[0] for batch in first) == len(dataset)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.source, b.source)
