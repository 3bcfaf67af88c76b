"""One file over the network: whole and right under its name, or not there, whatever happens on the way."""

import hashlib
import os
import signal
import subprocess
import sys
import threading

import pytest

from deepnet.data.corpora import Corpus, Part
from deepnet.data.download import fetch, get_corpus
from deepnet.data.text import read_lines
from deepnet.errors import DataError

FETCH = """
import sys
from pathlib import Path
from deepnet.data.download import fetch
fetch(sys.argv[1], path=Path(sys.argv[2]), report=lambda message: print(message, flush=True))
"""
GET = """
import sys
from pathlib import Path
from deepnet.data.corpora import Corpus, Part
from deepnet.data.download import get_corpus
part = Part(split="train", url=sys.argv[1])
corpus = Corpus(
    name="mini", title="", licence="", attribution="", homepage="", parts=(part,),
    languages=("de", "en"), splits=("train",),
)
print(get_corpus(corpus, ("de", "en"), downloads=Path(sys.argv[2]), report=lambda message: None))
"""
BIG = b"".join(f"sentence {number}\n".encode() for number in range(200_000))
"""Three megabytes, of which no two places are alike."""


def _quiet(message: str) -> None:
    pass


def _start(code: str, *arguments: object) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_that_fetch_one_file_both_have_it_whole(tmp_path, server):
    server.files["f"] = BIG
    server.meeting = threading.Barrier(2, timeout=2)
    both = [_start(FETCH, server.url("f"), tmp_path / "f") for _ in range(2)]
    for process in both:
        _, error = process.communicate(timeout=120)
        assert (process.returncode, error) == (0, "")
        assert (tmp_path / "f").read_bytes() == BIG
    assert server.names == ["f"]  # who comes second finds it there


def test_two_processes_that_get_one_corpus_both_have_it_whole(tmp_path, server):
    server.files |= {"train.de": BIG, "train.en": BIG.upper()}
    server.meeting = threading.Barrier(2, timeout=2)
    both = [_start(GET, server.url("train.{language}"), tmp_path) for _ in range(2)]
    for process in both:
        said, error = process.communicate(timeout=120)
        assert (process.returncode, error, said.strip()) == (0, "", str(tmp_path / "mini"))
        lines = list(read_lines(tmp_path / "mini" / "train.de.gz"))
        assert "\n".join(lines).encode() + b"\n" == BIG
    assert server.names == ["train.de", "train.en"]


def test_a_pair_that_is_complete_takes_nothing_from_another_that_is_not(tmp_path, server):
    corpus = Corpus(
        name="mini", title="", licence="", attribution="", homepage="", languages=("de", "en", "fr"), splits=("train",),
        pairwise=True, parts=(Part(split="train", url=server.url("{pair}.{language}")),),
    )  # fmt: skip
    server.files |= {f"{name}": b"x\n" for name in ("de-en.de", "de-en.en", "en-fr.en")}
    with pytest.raises(DataError, match="404"):
        get_corpus(corpus, ("en", "fr"), downloads=tmp_path, report=_quiet)
    get_corpus(corpus, ("de", "en"), downloads=tmp_path, report=_quiet)
    server.files["en-fr.fr"] = b"y\n"
    get_corpus(corpus, ("en", "fr"), downloads=tmp_path, report=_quiet)
    assert server.names.count("en-fr.en") == 1


def test_a_download_that_breaks_off_goes_on_where_it_stopped(tmp_path, server):
    server.files["f"] = BIG
    server.broken.add("f")
    half = len(BIG) // 2
    for _ in range(2):
        with pytest.raises(DataError, match=r"cannot download .* of .* bytes.*goes on from there"):
            fetch(server.url("f"), path=tmp_path / "f", report=_quiet)
        assert not (tmp_path / "f").exists()
    server.broken.clear()
    fetch(server.url("f"), path=tmp_path / "f", report=_quiet)
    assert (tmp_path / "f").read_bytes() == BIG
    three_quarters = half + (len(BIG) - half) // 2
    assert server.asked == [("f", None), ("f", f"bytes={half}-"), ("f", f"bytes={three_quarters}-")]


@pytest.mark.parametrize("lacking", ["continues", "tags"])
def test_where_the_rest_cannot_be_had_it_starts_again(tmp_path, server, lacking):
    setattr(server, lacking, False)
    server.files["f"] = BIG
    server.broken.add("f")
    with pytest.raises(DataError, match="broke off"):
        fetch(server.url("f"), path=tmp_path / "f", report=_quiet)
    server.broken.clear()
    fetch(server.url("f"), path=tmp_path / "f", report=_quiet)
    assert (tmp_path / "f").read_bytes() == BIG


@pytest.mark.parametrize("now", [BIG.upper(), b"short", b""])
def test_a_file_that_changed_meanwhile_is_not_pieced_together(tmp_path, server, now):
    server.files["f"] = BIG
    server.broken.add("f")
    with pytest.raises(DataError, match="broke off"):
        fetch(server.url("f"), path=tmp_path / "f", report=_quiet)
    server.broken.clear()
    server.files["f"] = now
    fetch(server.url("f"), path=tmp_path / "f", report=_quiet)
    assert (tmp_path / "f").read_bytes() == now


def test_a_killed_download_is_taken_up(tmp_path, server):
    server.files["f"] = BIG
    server.meeting = threading.Barrier(2, timeout=60)
    process = _start(FETCH, server.url("f"), tmp_path / "f")
    partial = tmp_path / "f.partial"
    while not (partial.exists() and partial.stat().st_size >= 1 << 20):
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    server.meeting.abort()
    server.meeting = None
    assert not (tmp_path / "f").exists()
    fetch(server.url("f"), path=tmp_path / "f", report=_quiet)
    assert (tmp_path / "f").read_bytes() == BIG
    start = int(server.asked[-1][1].removeprefix("bytes=").removesuffix("-"))
    assert start >= 1 << 20


def test_what_was_killed_between_its_last_byte_and_its_name_is_fetched_again(tmp_path, server):
    server.files["f"] = BIG
    server.broken.add("f")
    with pytest.raises(DataError, match="broke off"):
        fetch(server.url("f"), path=tmp_path / "f", report=_quiet)
    server.broken.clear()
    (tmp_path / "f.partial").write_bytes(BIG)
    fetch(server.url("f"), path=tmp_path / "f", report=_quiet)
    assert (tmp_path / "f").read_bytes() == BIG


def test_the_sum_is_of_what_lies_on_the_disk(tmp_path, server, monkeypatch):
    """Whatever came between the network and the disk: the file is what is judged."""
    server.files["f"] = BIG
    right, path = hashlib.sha256(BIG).hexdigest(), tmp_path / "f"
    flush = os.fsync

    def spoil(file: int) -> None:
        if os.fstat(file).st_size == len(BIG):
            os.pwrite(file, bytes(1 << 20), 0)
        flush(file)

    monkeypatch.setattr(os, "fsync", spoil)
    with pytest.raises(DataError, match=f"instead of {right}; it was not kept"):
        fetch(server.url("f"), path=path, sha256=right, report=_quiet)
    assert not path.exists()
    monkeypatch.undo()
    fetch(server.url("f"), path=path, sha256=right, report=_quiet)
    assert path.read_bytes() == BIG


def test_what_an_earlier_deepnet_left_of_a_download_is_not_taken_for_it(tmp_path, server):
    server.files["f"] = b"whole"
    (tmp_path / "f.partial").write_bytes(b"a longer beginning of something else")
    fetch(server.url("f"), path=tmp_path / "f", report=_quiet)
    assert (tmp_path / "f").read_bytes() == b"whole"
    assert _left(tmp_path) == ["f"]


def test_a_server_that_is_gone_names_the_offline_folder(tmp_path, server):
    url = server.url("f")
    server.shutdown()
    server.server_close()
    with pytest.raises(DataError, match=r"cannot download http.*DEEPNET_DATA"):
        fetch(url, path=tmp_path / "f", report=_quiet)


def test_an_unreachable_address_names_the_offline_folder(tmp_path):
    with pytest.raises(DataError, match=r"cannot download file:.*DEEPNET_DATA"):
        fetch((tmp_path / "none").as_uri(), path=tmp_path / "x", report=_quiet)


def test_a_wrong_sum_is_refused_and_a_right_one_taken(tmp_path, server):
    server.files["f"] = b"data"
    said, target = [], tmp_path / "d" / "f"
    with pytest.raises(DataError, match=r"sha256 .* instead of 0000"):
        fetch(server.url("f"), path=target, sha256="0" * 64, report=said.append)
    assert _left(target.parent) == []
    digest = hashlib.sha256(b"data").hexdigest()
    fetch(server.url("f"), path=target, sha256=digest, report=said.append)
    assert target.read_bytes() == b"data"
    assert said == [f"downloading {server.url('f')}"] * 2


def _left(folder) -> list[str]:
    """What lies in a folder besides the file its lock is on."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")
