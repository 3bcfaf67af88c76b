import gzip

import pytest

from deepnet.data import text
from deepnet.data.text import (
    decode_block,
    decode_lines,
    read_blocks,
    read_lines,
    read_pairs,
    read_rows,
    write_rows,
)
from deepnet.errors import DataError


def _write(path, data: bytes):
    path.write_bytes(data)
    return path


def test_plain_and_gzip_read_the_same(tmp_path):
    data = "Grüße\n\nzweite Zeile \n".encode()
    plain = _write(tmp_path / "a", data)
    zipped = _write(tmp_path / "b.gz", gzip.compress(data))
    assert list(read_lines(plain)) == list(read_lines(zipped)) == ["Grüße", "", "zweite Zeile "]


def test_only_line_feeds_end_a_line(tmp_path):
    path = _write(tmp_path / "a", "\ufeffone\r\ntwo\u2028still two\x0b\nlast".encode())
    assert list(read_lines(path)) == ["one", "two\u2028still two\x0b", "last"]


def test_not_utf8_names_file_line_and_byte(tmp_path):
    path = _write(tmp_path / "latin.txt", b"fine\nGr\xfc\xdfe\n")
    with pytest.raises(DataError, match=r"latin\.txt, line 2: byte 3 .*0xfc.* not UTF-8"):
        list(read_lines(path))


@pytest.mark.parametrize("name", ["missing.de", "."])
def test_missing_file_and_folder(tmp_path, name):
    with pytest.raises(DataError, match="cannot read"):
        list(read_lines(tmp_path / name))


def test_truncated_gzip_is_refused(tmp_path):
    data = gzip.compress(b"".join(b"line %d\n" % i for i in range(10_000)))
    path = _write(tmp_path / "a.gz", data[: len(data) // 2])
    with pytest.raises(DataError, match=r"a\.gz cannot be read after line"):
        list(read_lines(path))


@pytest.mark.parametrize(("source", "target"), [(3, 5), (5, 3), (0, 1)])
def test_different_lengths_give_both_counts(tmp_path, source, target):
    left = _write(tmp_path / "s", b"x\n" * source)
    right = _write(tmp_path / "t", b"y\n" * target)
    with pytest.raises(DataError, match=rf"s has {source} lines and .*t has {target};"):
        list(read_pairs(left, right))


def test_empty_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="are empty"):
        list(read_pairs(_write(tmp_path / "s", b""), _write(tmp_path / "t", b"")))


def test_written_pairs_read_back(tmp_path):
    pairs = [("a", "b"), ("ä\u2028", "c")]
    assert write_rows(iter(pairs), (tmp_path / "s", tmp_path / "t")) == 2
    assert list(read_pairs(tmp_path / "s", tmp_path / "t")) == pairs


def test_decode_lines_names_the_stream(tmp_path):
    path = _write(tmp_path / "x", b"\xff\n")
    with path.open("rb") as stream, pytest.raises(DataError, match="inner, line 1"):
        list(decode_lines(stream, name="inner"))


@pytest.fixture(params=[(1, 1 << 20), (2, 1 << 20), (1000, 1), (1000, 1 << 20)])
def block_size(request, monkeypatch):
    rows, size = request.param
    monkeypatch.setattr(text, "BLOCK_ROWS", rows)
    monkeypatch.setattr(text, "BLOCK_BYTES", size)
    monkeypatch.setattr(text, "_RUN_ROWS", 3)
    return request.param


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_blocks_have_the_rows(tmp_path, block_size, end):
    left = _write(tmp_path / "a", "\ufeffone\r\n\ntwo\u2028still\r\r\n\x85\nlast".encode() + end)
    right = _write(tmp_path / "b.gz", gzip.compress(b"1\n2\n3\n4\n\xef\xbb\xbf5" + end))
    blocks = list(read_blocks([left, right]))
    rows = [
        row for block in blocks for row in zip(*decode_block(block, [left, right]), strict=True)
    ]
    assert rows == list(zip(read_lines(left), read_lines(right), strict=True))
    assert rows == list(read_rows([left, right]))
    assert len(rows) == 5
    assert [block.first for block in blocks] == [
        sum(block.rows for block in blocks[:index]) for index in range(len(blocks))
    ]
    assert max(block.rows for block in blocks) <= (block_size[0] if block_size[1] > 1 else 3)


@pytest.mark.parametrize(("source", "target"), [(3, 5), (7, 3), (0, 1)])
def test_blocks_of_different_lengths_give_both_counts(tmp_path, block_size, source, target):
    paths = [_write(tmp_path / "s", b"x\n" * source), _write(tmp_path / "t", b"y\n" * target)]
    with pytest.raises(DataError, match=rf"s has {source} lines and .*t has {target};"):
        list(read_blocks(paths))


def test_what_is_not_utf8_in_a_block_names_file_line_and_byte(tmp_path, block_size):
    paths = [
        _write(tmp_path / "fine", b"1\n2\n3\n4\n5\n"),
        _write(tmp_path / "latin.txt", b"one\ntwo\nthree\nGr\xfc\xdfe\nfive\n"),
    ]
    with pytest.raises(DataError, match=r"latin\.txt, line 4: byte 3 .*0xfc.* not UTF-8"):
        [decode_block(block, paths) for block in read_blocks(paths)]


def test_blocks_of_empty_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="s is empty"):
        list(read_blocks([_write(tmp_path / "s", b"")]))
