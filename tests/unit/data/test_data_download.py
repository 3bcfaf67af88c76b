import dataclasses
import gzip
import hashlib
import io
import tarfile
import zipfile

import pytest

from deepnet.data.corpora import Corpus, Part
from deepnet.data.download import get_corpus, open_member
from deepnet.data.text import read_lines
from deepnet.errors import ConfigError, DataError


def _quiet(message: str) -> None:
    pass


def _tar(path, **members: bytes):
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def _corpus(*parts: Part, **options) -> Corpus:
    options = {"languages": ("de", "en"), "splits": ("train",)} | options
    return Corpus(
        name="mini", title="", licence="", attribution="", homepage="", parts=parts, **options
    )


def _read(folder, split, language):
    return list(read_lines(folder / f"{split}.{language}.gz"))


def test_an_archive_becomes_split_files(tmp_path):
    archive = _tar(
        tmp_path / "a.tgz",
        **{
            "x/train.de": b"eins\nzwei\ndrei\n",
            "./x/train.en": b"one\ntwo\nthree\n",
            "y/more.de.gz": gzip.compress(b"vier\n"),
            "y/more.en.gz": gzip.compress(b"four\n"),
        },
    )
    url = archive.as_uri()
    corpus = _corpus(
        Part(split="train", url=url, member="x/train.{language}"),
        Part(split="train", url=url, member="y/more.{language}.gz"),
        splits=("train", "valid"),
        valid_every=3,
    )
    folder = get_corpus(corpus, ("de", "en"), downloads=tmp_path / "d", report=_quiet)
    assert _read(folder, "train", "de") == ["eins", "zwei", "vier"]
    assert _read(folder, "train", "en") == ["one", "two", "four"]
    assert _read(folder, "valid", "en") == ["three"]
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == ["archives", "mini"]
    archive.unlink()
    assert get_corpus(corpus, ("de", "en"), downloads=tmp_path / "d", report=_quiet) == folder


def test_talk_and_news_formats(tmp_path):
    train = (
        "<url>http://x</url>\n<title>A title</title>\nFirst line.\n <description>About.</description>\n"
        "<keywords>k</keywords>\n<reviewer href='x'>r</reviewer>\nSecond < line.\n"
    )
    test = '<doc>\n<SEG id="1"> Tom &amp; Ann </SEG>\n<p><seg id="2">Two</seg></p>\n</doc>\n'
    archive = _tar(
        tmp_path / "a.tgz",
        **{
            "t.de": train.encode(),
            "t.en": train.encode(),
            "x.de": test.encode(),
            "x.en": test.encode(),
        },
    )
    corpus = _corpus(
        Part(split="train", url=archive.as_uri(), member="t.{language}", format="wit3"),
        Part(split="test", url=archive.as_uri(), member="x.{language}", format="segments"),
        splits=("train", "test"),
    )
    folder = get_corpus(corpus, ("de", "en"), downloads=tmp_path / "d", report=_quiet)
    assert _read(folder, "train", "de") == ["A title", "First line.", "About.", "Second < line."]
    assert _read(folder, "test", "en") == ["Tom & Ann", "Two"]


def test_pairwise_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "de-en.zip", "w") as zipped:
        zipped.writestr("M.de-en.de", "a\n")
        zipped.writestr("M.de-en.en", "b\n")
    url = (tmp_path / "x").as_uri()[:-1] + "{pair}.zip"
    corpus = _corpus(
        Part(split="train", url=url, member="M.{pair}.{language}"),
        pairwise=True,
        languages=("de", "en", "fr"),
    )
    folder = get_corpus(corpus, ("en", "de"), downloads=tmp_path / "d", report=_quiet)
    assert folder == tmp_path / "d" / "mini" / "de-en"
    assert _read(folder, "train", "en") == ["b"]


@pytest.fixture
def served(server):
    """A server with both files of a corpus, and the corpus."""
    for language in ("de", "en"):
        server.files[f"train.{language}.gz"] = gzip.compress(language.encode() + b"\n")
    return server, _corpus(Part(split="train", url=server.url("train.{language}.gz")))


def test_files_over_http_with_messages(tmp_path, served):
    server, corpus = served
    said = []
    folder = get_corpus(corpus, ("de", "en"), downloads=tmp_path, report=said.append)
    assert _read(folder, "train", "de") == ["de"]
    assert [message.split("/")[0] for message in said[::2]] == ["downloading http:"] * 2
    sums = [hashlib.sha256(data).hexdigest() for data in server.files.values()]
    for message, digest in zip(said[1::2], sums, strict=True):
        assert message == f"no checksum is known for it; its sha256 is {digest}"


def test_an_http_error_is_said_and_the_next_try_goes_on_with_what_is_missing(tmp_path, served):
    server, corpus = served
    english = server.files.pop("train.en.gz")
    with pytest.raises(DataError, match=r"cannot download http.*train\.en\.gz: HTTP Error 404"):
        get_corpus(corpus, ("de", "en"), downloads=tmp_path, report=_quiet)
    assert [path.name for path in tmp_path.iterdir()] == ["archives"]
    server.files["train.en.gz"] = english
    folder = get_corpus(corpus, ("de", "en"), downloads=tmp_path, report=_quiet)
    assert server.names == ["train.de.gz", "train.en.gz", "train.en.gz"]
    assert _read(folder, "train", "en") == ["en"]


def test_a_corpus_whose_sum_differs_is_not_kept(tmp_path, served):
    _, corpus = served
    part = dataclasses.replace(corpus.parts[0], sha256="0" * 64)
    with pytest.raises(DataError, match="it was not kept"):
        get_corpus(
            dataclasses.replace(corpus, parts=(part,)),
            ("de", "en"),
            downloads=tmp_path,
            report=_quiet,
        )
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"] == []


def test_it_is_said_whether_all_sums_are_known():
    known, unknown = Part(split="train", url="a", sha256="0" * 64), Part(split="test", url="b")
    assert _corpus(known).checksum == "known"
    assert _corpus(known, unknown).checksum == "unknown"
    assert _corpus(builtin=True).checksum is None


def test_a_failed_download_leaves_no_corpus(tmp_path):
    archive = _tar(tmp_path / "a.tgz", **{"t.de": b"a\n"})
    corpus = _corpus(Part(split="train", url=archive.as_uri(), member="t.{language}"))
    with pytest.raises(DataError, match=r"has no file t\.en"):
        get_corpus(corpus, ("de", "en"), downloads=tmp_path / "d", report=_quiet)
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["archives"]


def test_members_are_read_by_name_and_links_are_not_followed(tmp_path):
    path = tmp_path / "evil.tgz"
    with tarfile.open(path, "w:gz") as tar:
        link = tarfile.TarInfo("t.de")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo("../escaped"))
    with pytest.raises(DataError, match=r"has no file t\.de"), open_member(path, "t.de"):
        pass
    assert sorted(p.name for p in tmp_path.iterdir()) == ["evil.tgz"]


def test_a_truncated_archive_is_refused(tmp_path):
    whole = _tar(tmp_path / "a.tgz", **{"t.de": bytes(range(256)) * 4000})
    whole.write_bytes(whole.read_bytes()[:2000])
    with (
        pytest.raises(DataError, match=r"damaged|cannot be read"),
        open_member(whole, "t.de") as stream,
    ):
        stream.read()


def test_a_language_the_corpus_lacks_is_refused_before_any_download(tmp_path):
    corpus = _corpus(Part(split="train", url="file:///none"))
    with pytest.raises(ConfigError, match="no language 'fr'"):
        get_corpus(corpus, ("de", "fr"), downloads=tmp_path / "d", report=_quiet)
