"""One process at a time writes a folder; a killed one keeps nobody out."""

import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest

from deepnet.errors import ConfigError
from deepnet.lock import locked_folder
from deepnet.record import RunFolder

HOLD = """
import sys
from pathlib import Path
from deepnet.lock import locked_folder
with locked_folder(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that has the lock on tmp_path."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"locked\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_process_is_refused_and_told_which_is_first(tmp_path, holder):
    with (
        pytest.raises(ConfigError, match=f"is being written by process {holder.pid} on "),
        locked_folder(tmp_path),
    ):
        pytest.fail("got the lock")


def test_who_waits_is_told_for_whom_and_gets_in_when_that_one_has_ended(tmp_path, holder):
    said = []

    def end_it(message: str) -> None:
        said.append(message)
        holder.communicate()

    with locked_folder(tmp_path, wait=end_it):
        assert holder.returncode == 0
    assert said[0].startswith(f"{tmp_path} is being written by process {holder.pid} on ")


def test_a_disk_that_knows_no_locks_is_guarded_by_a_file(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.warns(UserWarning, match="flock not supported"),
        locked_folder(tmp_path),
        pytest.raises(ConfigError, match="is being written by"),
        locked_folder(tmp_path),
    ):
        pytest.fail("got the lock")
    with pytest.warns(UserWarning, match="flock not supported"), locked_folder(tmp_path):
        pass


def test_a_killed_process_keeps_nobody_out(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with locked_folder(tmp_path):
        assert (tmp_path / ".lock").read_text().startswith(f"process {os.getpid()} on ")
    with locked_folder(tmp_path):
        pass


def test_a_run_is_neither_started_nor_resumed_by_two(tmp_path):
    with RunFolder.locked(tmp_path / "run", recipe={"seed": 1}) as run:
        for resume in (False, True):
            with (
                pytest.raises(ConfigError, match="is being written by process"),
                RunFolder.locked(tmp_path / "run", recipe={"seed": 2}, resume=resume),
            ):
                pytest.fail("got the lock")
        assert run.read_recipe()["recipe"] == {"seed": 1}
    with RunFolder.locked(tmp_path / "run", recipe={}, resume=True) as again:
        assert again.read_recipe()["recipe"] == {"seed": 1}


def test_nothing_is_made_where_there_is_no_run_to_resume(tmp_path):
    with (
        pytest.raises(ConfigError, match="holds no run"),
        RunFolder.locked(tmp_path / "none", recipe={}, resume=True),
    ):
        pytest.fail("got the lock")
    assert list(tmp_path.iterdir()) == []
