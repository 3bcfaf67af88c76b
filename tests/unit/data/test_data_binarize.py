import json
import resource
import shutil
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from deepnet.data.binarize import binarize, shard_path
from deepnet.data.dataset import TextDataset
from deepnet.data.tokenizer import Tokenizer, TokenizerConfig, Tokenizers, train_tokenizer
from deepnet.errors import DataError
from deepnet.seal import SUMS_FILE, seal_folder

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


@pytest.mark.parametrize("shard_rows", [1, 7, 25, 1000])
def test_what_goes_in_comes_out(tmp_path, tokenizers, shard_rows):
    header = _binarize(tmp_path / "x", tokenizers, shard_rows=shard_rows)
    dataset = TextDataset(tmp_path / "x", tokenizers=tokenizers)
    assert len(dataset) == header.rows == 25
    assert len(header.shards) == -(-25 // shard_rows)
    for i, (source, target) in enumerate(PAIRS):
        source_ids, target_ids = dataset[i]
        assert source_ids[-1] == target_ids[-1] == 0
        assert tokenizers.source.decode([source_ids.tolist()]) == [source]
        assert tokenizers.target.decode([target_ids.tolist()]) == [target]


@pytest.mark.parametrize("shard_rows", [1, 7, 1000])
def test_rows_of_any_shards_are_padded_together(tmp_path, tokenizers, shard_rows):
    _binarize(tmp_path / "x", tokenizers, shard_rows=shard_rows)
    dataset = TextDataset(tmp_path / "x")
    rows = [24, 3, 0, 3, 17, 8]
    for side, (ids, real) in enumerate(dataset.padded(np.array(rows))):
        sentences = [dataset[row][side].tolist() for row in rows]
        longest = max(map(len, sentences))
        pad = dataset.header.sides[side].pad
        assert ids.dtype == np.int64
        assert ids.tolist() == [ids + [pad] * (longest - len(ids)) for ids in sentences]
        assert real.sum(axis=1).tolist() == [len(ids) for ids in sentences]


@pytest.mark.parametrize(
    ("start", "stop"), [(0, None), (0, 25), (6, 8), (7, 7), (13, 99), (24, 25)]
)
def test_lengths_are_those_of_the_sentences(tmp_path, tokenizers, start, stop):
    _binarize(tmp_path / "x", tokenizers, shard_rows=7)
    dataset = TextDataset(tmp_path / "x")
    source, target = dataset.lengths(start, stop)
    expected = [(len(s.split()) + 1, len(t.split()) + 1) for s, t in PAIRS[start:stop]]
    assert list(zip(source.tolist(), target.tolist(), strict=True)) == expected


def test_header_counts(tmp_path, tokenizers):
    header = _binarize(tmp_path / "x", tokenizers, max_length=9)
    kept = [(s, t) for s, t in PAIRS if len(s.split()) < 9]
    assert header.too_long == len(PAIRS) - len(kept)
    assert header.rows == len(kept)
    assert [side.tokens for side in header.sides] == [
        sum(len(row[side].split()) + 1 for row in kept) for side in (0, 1)
    ]
    assert header.longest == 9
    assert [side.language for side in header.sides] == ["de", "en"]
    dataset = TextDataset(tmp_path / "x")
    assert [side.pad for side in dataset.header.sides] == [
        tokenizers.source.pad,
        tokenizers.target.pad,
    ]


def test_ids_take_two_bytes_or_four(tmp_path, tokenizers):
    header = _binarize(tmp_path / "small", tokenizers)
    assert header.dtype == np.uint16
    size = shard_path(tmp_path / "small", 0, "ids").stat().st_size
    assert size == 2 * sum(side.tokens for side in header.sides)
    many = _words(" ".join(f"w{i}" for i in range(66_000)))
    large = Tokenizers(many, many)
    rarest = many.decode([[many.pad - 1]])[0]
    header = _binarize(tmp_path / "large", large, pairs=[(rarest, "w2")])
    assert header.dtype == np.uint32
    source, _ = TextDataset(tmp_path / "large")[0]
    assert source.tolist() == [many.pad - 1, 0]
    assert many.pad - 1 > 65535


def test_views_cannot_be_written(tmp_path, tokenizers):
    _binarize(tmp_path / "x", tokenizers)
    source, _ = TextDataset(tmp_path / "x")[0]
    with pytest.raises(ValueError, match="read-only"):
        source[0] = 5


@pytest.mark.parametrize("index", [-1, 25])
def test_indices_out_of_range(tmp_path, tokenizers, index):
    _binarize(tmp_path / "x", tokenizers)
    with pytest.raises(IndexError):
        TextDataset(tmp_path / "x")[index]


def test_another_tokenizer_is_refused(tmp_path, tokenizers):
    _binarize(tmp_path / "x", tokenizers)
    other = Tokenizers(tokenizers.source, _words("a b c d e"))
    with pytest.raises(DataError, match="another target tokenizer"):
        TextDataset(tmp_path / "x", tokenizers=other)


@pytest.mark.parametrize("suffix", ["ids", "offsets"])
def test_truncated_and_missing_shards_are_refused(tmp_path, tokenizers, suffix):
    _binarize(tmp_path / "x", tokenizers, shard_rows=10)
    path = shard_path(tmp_path / "x", 1, suffix)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=f"00001.{suffix} has .* bytes instead of .*damaged"):
        TextDataset(tmp_path / "x")
    path.unlink()
    with pytest.raises(DataError, match="damaged"):
        TextDataset(tmp_path / "x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 99}, "format version 99, this deepnet reads 2"),
        ({"format": "other"}, "does not describe prepared text"),
        ({"surprise": 1}, "foreign"),
    ],
)
def test_foreign_headers_are_refused(tmp_path, tokenizers, change, message):
    _binarize(tmp_path / "x", tokenizers)
    (tmp_path / "x" / "SHA256SUMS").unlink()
    path = tmp_path / "x" / "header.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=message):
        TextDataset(tmp_path / "x")


@pytest.mark.parametrize("text", [None, "", "{"])
def test_missing_or_damaged_header_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "header.json").write_text(text)
    with pytest.raises(DataError, match="prepare the data again"):
        TextDataset(tmp_path)


def test_any_number_of_shards_opens_with_few_file_handles(tmp_path, tokenizers):
    number, most = 5000, 64
    header = _binarize(tmp_path / "x", tokenizers, pairs=PAIRS[:1])
    for shard in range(1, number):
        for suffix in ("ids", "offsets"):
            shutil.copy(
                shard_path(tmp_path / "x", 0, suffix), shard_path(tmp_path / "x", shard, suffix)
            )
    more = asdict(replace(header, shards=header.shards * number))
    (tmp_path / "x" / "header.json").write_text(json.dumps(more))
    (tmp_path / "x" / SUMS_FILE).unlink()
    seal_folder(tmp_path / "x")
    with file_handles_limited_to(most):
        dataset = TextDataset(tmp_path / "x", tokenizers=tokenizers)
        rows = [dataset[row] for row in range(number)]
        source, target = dataset.lengths()
    assert len(rows) == len(source) == len(target) == number
    assert all(np.array_equal(row[0], rows[0][0]) for row in rows)
    assert tokenizers.target.decode([rows[-1][1].tolist()]) == [PAIRS[0][1]]
    assert _mapped(tmp_path) == 2 * number
    del rows, dataset
    assert _mapped(tmp_path) == 0


@contextmanager
def file_handles_limited_to(number):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def _mapped(folder):
    return Path("/proc/self/maps").read_text().count(f"{folder}/")


def test_a_flipped_bit_is_found_when_the_shard_is_first_read(tmp_path, tokenizers):
    _binarize(tmp_path / "x", tokenizers, shard_rows=10)
    for suffix in ("ids", "offsets"):
        path = shard_path(tmp_path / "x", 1, suffix)
        content = path.read_bytes()
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        dataset = TextDataset(tmp_path / "x")
        assert len(dataset[9]) == 2
        with pytest.raises(DataError, match=f"00001.{suffix} is damaged: its sha256"):
            dataset[10]
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("suffix", "dtype", "number", "words"),
    [
        ("ids", "<u2", 5, "ids that the vocabulary lacks"),
        ("ids", "<u2", 6, "ids that the vocabulary lacks"),
        ("ids", "<u2", 65535, "ids that the vocabulary lacks"),
        ("offsets", "<i8", -1, "do not ascend"),
        ("offsets", "<i8", 1 << 40, "do not ascend"),
    ],
)
def test_numbers_that_no_text_gives_are_refused_without_a_checksum_too(
    tmp_path, tokenizers, suffix, dtype, number, words
):
    _binarize(tmp_path / "x", tokenizers)
    (tmp_path / "x" / SUMS_FILE).unlink()
    path = shard_path(tmp_path / "x", 0, suffix)
    content = np.fromfile(path, dtype)
    content[3 if suffix == "offsets" else 0] = (
        number  # the first source has the vocabulary of 5 ids
    )
    content.tofile(path)
    with pytest.raises(DataError, match=words):
        TextDataset(tmp_path / "x")[0]


@pytest.mark.parametrize(
    "change",
    [
        {"shards": [{"rows": 10**12, "ids": 10**12}]},
        {"shards": [{"rows": -1, "ids": 5}]},
        {"shards": [{"rows": "many", "ids": 5}]},
        {"shards": [{"rows": 1}]},
        {"shards": [5]},
        {"shards": {}},
        {"sides": []},
        {"sides": [{"language": "de"}]},
        {"longest": None},
    ],
)
def test_a_header_that_says_what_is_not_there_is_refused(tmp_path, tokenizers, change):
    _binarize(tmp_path / "x", tokenizers)
    (tmp_path / "x" / SUMS_FILE).unlink()
    path = tmp_path / "x" / "header.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=r"prepare the data again|give more text"):
        TextDataset(tmp_path / "x")


def test_nothing_is_left_when_the_text_turns_out_bad(tmp_path, tokenizers):
    def pairs():
        yield "a", "b"
        raise DataError("line 2 is bad")

    with pytest.raises(DataError, match="line 2"):
        _binarize(tmp_path / "x", tokenizers, pairs=pairs())
    assert list(tmp_path.iterdir()) == []
