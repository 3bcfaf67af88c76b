"""What a process writes appears whole or not at all, and what a killed one leaves is removed by the next."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from deepnet.atomic import atomic_folder, atomic_write, remove_abandoned
from deepnet.data import prepare as preparing
from deepnet.data.cleaning import CleaningConfig
from deepnet.data.sources import DataConfig
from deepnet.data.tokenizer import TokenizerConfig
from deepnet.record import RunFolder

WRITER = """
import sys, time
from pathlib import Path
from deepnet.atomic import atomic_folder, atomic_write
folder = Path(sys.argv[1])
with atomic_folder(folder / "whole") as new, atomic_folder(new / "part") as part:
    (part / "shard").write_bytes(b"half")
    with atomic_write(folder / "file") as file:
        file.write(b"half")
        print("writing", flush=True)
        time.sleep(60)
"""


@pytest.fixture
def writer(tmp_path):
    """A process that is in the middle of writing a folder and a file."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "writing\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def end(process, number):
    process.send_signal(number)
    return process.wait(timeout=30)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def make_old(path, seconds):
    os.utime(path, (time.time() - seconds,) * 2)


def test_two_threads_write_one_file_at_a_time_each_whole(tmp_path):
    """Both are in the middle of it when the first ends: the file is one of theirs, whole, and neither fails."""
    both = threading.Barrier(2, timeout=30)

    def write(content):
        with atomic_write(tmp_path / "file") as file:
            file.write(content[:1])
            both.wait()
            file.write(content[1:])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, (b"a" * 9, b"b" * 9)))
    assert (tmp_path / "file").read_bytes() in (b"a" * 9, b"b" * 9)
    assert names(tmp_path) == ["file"]


def test_sigterm_leaves_nothing(tmp_path, writer):
    assert len(names(tmp_path)) == 2
    assert end(writer, signal.SIGTERM) == 128 + signal.SIGTERM
    assert names(tmp_path) == []


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(
    tmp_path, writer
):
    file, folder = names(tmp_path)
    make_old(tmp_path / file, 120)
    make_old(tmp_path / folder, 1e6)
    remove_abandoned(tmp_path)
    assert names(tmp_path) == [file, folder]
    end(writer, signal.SIGKILL)
    assert names(tmp_path) == [file, folder]
    make_old(tmp_path / file, 120)
    remove_abandoned(tmp_path)
    assert names(tmp_path) == []


def test_the_next_writer_of_the_same_folder_removes_what_was_left_of_it(tmp_path, writer):
    end(writer, signal.SIGKILL)
    with atomic_folder(tmp_path / "whole") as new:
        (new / "file").write_text("")
    assert names(tmp_path / "whole") == ["file"]
    assert [name for name in names(tmp_path) if "whole" in name] == ["whole"]


def test_what_is_not_known_to_be_nobodys_stays(tmp_path):
    for name in (".mine.tmp", ".mine.12.tmp.txt", "mine.12.tmp"):
        (tmp_path / name).mkdir()
        make_old(tmp_path / name, 1e6)
    (tmp_path / ".young.12.tmp").mkdir()
    (tmp_path / ".young.13.tmp").write_text("")
    before = names(tmp_path)
    remove_abandoned(tmp_path)
    assert names(tmp_path) == before
    for path in tmp_path.glob(".young*"):
        make_old(path, 2e5)
    remove_abandoned(tmp_path)
    assert names(tmp_path) == [name for name in before if "young" not in name]


def test_a_handler_of_ones_own_stays(tmp_path):
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
    try:
        with atomic_write(tmp_path / "file") as file:
            os.kill(os.getpid(), signal.SIGTERM)
            file.write(b"whole")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [1]
    assert (tmp_path / "file").read_bytes() == b"whole"


def test_sigterm_in_the_preparation_of_data_leaves_nothing(tmp_path, monkeypatch):
    def steps(job, inputs):
        (job.folder / "train.de").write_text("half")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    for side in ("de", "en"):
        (tmp_path / f"text.{side}").write_text("ein Hund\n" * 3)
    config = DataConfig(
        train_source=str(tmp_path / "text.de"),
        train_target=str(tmp_path / "text.en"),
        source_language="de",
        target_language="en",
    )
    monkeypatch.setattr(preparing, "run_steps", steps)
    with pytest.raises(SystemExit) as ended:
        preparing.prepare(
            config,
            cleaning=CleaningConfig(),
            tokenizer=TokenizerConfig(),
            cache_dir=tmp_path / "cache",
        )
    assert ended.value.code == 143
    assert names(tmp_path / "cache") == []
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_run_removes_what_a_killed_session_left(tmp_path):
    left = [tmp_path / ".bundle.999999.tmp", tmp_path / "checkpoints" / ".step_4.999999.tmp"]
    with RunFolder.locked(tmp_path, recipe={}):
        for path in left:
            path.mkdir(parents=True)
            make_old(path, 2e5)
    with RunFolder.locked(tmp_path, recipe={}, resume=True):
        assert not any(path.exists() for path in left)
