import os
import subprocess
import sys
import time
from itertools import count, islice
from pathlib import Path

import pytest

from deepnet.data.workers import Workers
from deepnet.errors import DataError, DeepNetError


@pytest.fixture(params=[1, 3])
def workers(request):
    with Workers(request.param) as workers:
        yield workers


def test_results_come_in_the_order_of_the_tasks(workers):
    """The first tasks take longest."""
    assert list(
        workers.map(eval, ["__import__('time').sleep(0.2) or 0", *map(str, range(1, 30))])
    ) == [*range(30)]
    assert list(workers.map(abs, [-1])) == [1]
    assert list(workers.map(abs, [])) == []
    assert list(workers.map(abs, range(-9, 0))) == [
        *range(9, 0, -1)
    ]  # another function, in the same processes


def test_few_tasks_are_read_ahead(workers):
    read = []
    tasks = (read.append(number) or number for number in count())
    assert list(islice(workers.map(abs, tasks), 10)) == [*range(10)]
    assert len(read) <= 10 + 2 * workers.count + 2  # of which it reads some before it begins


def test_what_is_raised_comes_when_it_is_its_turn(workers):
    tasks = ["1", "2", "[][0]", *"45678"]
    results = workers.map(eval, tasks)
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(IndexError):
        next(results)
    missing = "list(__import__('deepnet.data.text', fromlist=['x']).read_lines('missing'))"
    with pytest.raises(DataError, match="cannot read missing"):
        list(workers.map(eval, [missing] * 9))


def test_a_few_tasks_are_no_reason_to_begin_a_process():
    with Workers(4) as workers:
        assert set(workers.map(eval, ["__import__('os').getpid()"] * 5)) == {os.getpid()}


def test_a_process_that_is_killed_is_said_to_be():
    tasks = ["1", "__import__('os').kill(__import__('os').getpid(), 9)", *"345678"]
    with Workers(2) as workers, pytest.raises(DeepNetError, match=r"ended with code -9.*memory"):
        list(workers.map(eval, tasks))


def test_what_is_printed_meanwhile_is_no_result():
    with Workers(2) as workers:
        assert list(workers.map(eval, ["print('x') or 1"] * 9)) == [1] * 9


def test_the_processes_know_neither_torch_nor_the_callers_script():
    """Each would cost a second and 200 MB, and a script without a guard would begin again."""
    asked = "sorted({'torch', 'pytest'} & set(__import__('sys').modules))"
    with Workers(2) as workers:
        assert list(workers.map(eval, [asked] * 9)) == [[]] * 9


def test_they_end_with_the_block_and_with_the_process_that_holds_them():
    with Workers(2) as workers:
        pids = set(workers.map(eval, ["__import__('os').getpid()"] * 20))
    assert os.getpid() not in pids
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)

    held = (
        "import os, deepnet.data.workers\n"
        "held = deepnet.data.workers.Workers(2)\n"
        "print(*held.map(eval, ['__import__(\"os\").getpid()'] * 20), flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    holder = subprocess.run([sys.executable, "-c", held], capture_output=True, check=False)
    pids = set(holder.stdout.split())
    assert pids
    end = time.monotonic() + 60
    while any(_runs(int(pid)) for pid in pids) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(_runs(int(pid)) for pid in pids)


def _runs(pid):
    """Whether a process is there and not a zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
