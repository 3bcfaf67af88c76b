import json

import numpy as np
import pytest

from deepnet.data.binarize import binarize, shard_path
from deepnet.data.dataset import PairDataset
from deepnet.data.tokenizer import Tokenizer, TokenizerConfig, Tokenizers, train_tokenizer
from deepnet.errors import DataError

PAIRS = [(" ".join("ab" * (1 + i % 7)), " ".join("ba" * (1 + i % 3))) for i in range(25)]


def _words(text: str) -> Tokenizer:
    return train_tokenizer(
        [text], config=TokenizerConfig(kind="words", vocab_size=len(text.split()) + 3)
    )


@pytest.fixture(scope="module")
def tokenizers():
    return Tokenizers(_words("a b"), _words("a b c d"))


def _binarize(folder, tokenizers, pairs=PAIRS, **options):
    options = {"max_length": 100, "languages": ("de", "en")} | options
    return binarize(iter(pairs), folder=folder, tokenizers=tokenizers, **options)


@pytest.mark.parametrize("shard_pairs", [1, 7, 25, 1000])
def test_what_goes_in_comes_out(tmp_path, tokenizers, shard_pairs):
    header = _binarize(tmp_path / "x", tokenizers, shard_pairs=shard_pairs)
    dataset = PairDataset(tmp_path / "x", tokenizers=tokenizers)
    assert len(dataset) == header.pairs == 25
    assert len(header.shards) == -(-25 // shard_pairs)
    for i, (source, target) in enumerate(PAIRS):
        source_ids, target_ids = dataset[i]
        assert source_ids[-1] == target_ids[-1] == 0
        assert tokenizers.source.decode([source_ids.tolist()]) == [source]
        assert tokenizers.target.decode([target_ids.tolist()]) == [target]


@pytest.mark.parametrize(
    ("start", "stop"), [(0, None), (0, 25), (6, 8), (7, 7), (13, 99), (24, 25)]
)
def test_lengths_are_those_of_the_sentences(tmp_path, tokenizers, start, stop):
    _binarize(tmp_path / "x", tokenizers, shard_pairs=7)
    dataset = PairDataset(tmp_path / "x")
    source, target = dataset.lengths(start, stop)
    expected = [(len(s.split()) + 1, len(t.split()) + 1) for s, t in PAIRS[start:stop]]
    assert list(zip(source.tolist(), target.tolist(), strict=True)) == expected


def test_header_counts(tmp_path, tokenizers):
    header = _binarize(tmp_path / "x", tokenizers, max_length=9)
    kept = [(s, t) for s, t in PAIRS if len(s.split()) < 9]
    assert header.too_long == len(PAIRS) - len(kept)
    assert header.pairs == len(kept)
    assert header.source_tokens == sum(len(s.split()) + 1 for s, _ in kept)
    assert header.target_tokens == sum(len(t.split()) + 1 for _, t in kept)
    assert header.longest == 9
    assert (header.source_language, header.target_language) == ("de", "en")
    dataset = PairDataset(tmp_path / "x")
    assert (dataset.source_pad, dataset.target_pad) == (
        tokenizers.source.pad,
        tokenizers.target.pad,
    )


def test_ids_take_two_bytes_or_four(tmp_path, tokenizers):
    header = _binarize(tmp_path / "small", tokenizers)
    assert header.dtype == np.uint16
    size = shard_path(tmp_path / "small", 0, "ids").stat().st_size
    assert size == 2 * (header.source_tokens + header.target_tokens)
    many = _words(" ".join(f"w{i}" for i in range(66_000)))
    large = Tokenizers(many, many)
    rarest = many.decode([[many.pad - 1]])[0]
    header = _binarize(tmp_path / "large", large, pairs=[(rarest, "w2")])
    assert header.dtype == np.uint32
    source, _ = PairDataset(tmp_path / "large")[0]
    assert source.tolist() == [many.pad - 1, 0]
    assert many.pad - 1 > 65535


def test_views_cannot_be_written(tmp_path, tokenizers):
    _binarize(tmp_path / "x", tokenizers)
    source, _ = PairDataset(tmp_path / "x")[0]
    with pytest.raises(ValueError, match="read-only"):
        source[0] = 5


@pytest.mark.parametrize("index", [-1, 25])
def test_indices_out_of_range(tmp_path, tokenizers, index):
    _binarize(tmp_path / "x", tokenizers)
    with pytest.raises(IndexError):
        PairDataset(tmp_path / "x")[index]


def test_another_tokenizer_is_refused(tmp_path, tokenizers):
    _binarize(tmp_path / "x", tokenizers)
    other = Tokenizers(tokenizers.source, _words("a b c d e"))
    with pytest.raises(DataError, match="another target tokenizer"):
        PairDataset(tmp_path / "x", tokenizers=other)


@pytest.mark.parametrize("suffix", ["ids", "offsets"])
def test_truncated_and_missing_shards_are_refused(tmp_path, tokenizers, suffix):
    _binarize(tmp_path / "x", tokenizers, shard_pairs=10)
    path = shard_path(tmp_path / "x", 1, suffix)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=f"00001.{suffix} has .* bytes instead of .*damaged"):
        PairDataset(tmp_path / "x")
    path.unlink()
    with pytest.raises(DataError, match="damaged"):
        PairDataset(tmp_path / "x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 99}, "format version 99, this deepnet reads 1"),
        ({"format": "other"}, "does not describe prepared pairs"),
        ({"surprise": 1}, "foreign"),
    ],
)
def test_foreign_headers_are_refused(tmp_path, tokenizers, change, message):
    _binarize(tmp_path / "x", tokenizers)
    path = tmp_path / "x" / "header.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=message):
        PairDataset(tmp_path / "x")


@pytest.mark.parametrize("text", [None, "", "{"])
def test_missing_or_damaged_header_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "header.json").write_text(text)
    with pytest.raises(DataError, match="prepare the data again"):
        PairDataset(tmp_path)


def test_nothing_is_left_when_the_text_turns_out_bad(tmp_path, tokenizers):
    def pairs():
        yield "a", "b"
        raise DataError("line 2 is bad")

    with pytest.raises(DataError, match="line 2"):
        _binarize(tmp_path / "x", tokenizers, pairs=pairs())
    assert list(tmp_path.iterdir()) == []
