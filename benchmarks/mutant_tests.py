"""Which tests cover a line, and whether one of them fails: what benchmarks/mutants.py asks of every mutant.

Tests are run once under coverage, which says per line which of them ran it. A mutant is given to those, up to the first
failure, in a fork of a process that has imported torch but nothing of the project. Files named after the module come
first, then one test of each file in turn, drawn by lot, as neighbours in a file often ask the same. The run under
coverage, which has no mutant, takes its tests in turn, too. What is run when a module is imported (a default, a
constant, a class's fields) is covered by every test.
"""

import ast
import json
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Never, TypeGuard
from zlib import crc32

import pytest
import torch  # noqa: F401  its import is most of what a fork saves
from coverage import CoverageData

OK, NO_TESTS_COLLECTED = pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED


@dataclass(frozen=True)
class Coverage:
    """What one run of some tests showed: how long each took, and which lines of which files it ran."""

    seconds: dict[str, float]
    """By the test's node id."""
    data: CoverageData
    root: Path
    new: tuple[str, ...] = ()
    """Tests that were written since; nothing is known of them."""

    def of(self, module: Path, line: int) -> list[str]:
        """Return the tests that run the statement at a line, behind those that are new; all, where none does."""
        first, when_imported = statement(module, line)
        if when_imported:
            found = set(self.seconds)
        else:
            contexts = self.data.contexts_by_lineno(str(self.root / module)).get(first, [])
            found = {context.rpartition("|")[0] for context in contexts} & set(self.seconds)
        known = in_turn(found or self.seconds)
        return [*self.new, *sorted(known, key=lambda test: module.stem not in file_of(test))]


def in_turn(tests: Iterable[str]) -> list[str]:
    """Return one test of each file after another, those of a file in an order that has nothing to do with them."""
    places, drawn = Counter[str](), []
    for test in sorted(tests, key=lambda test: crc32(test.encode())):
        places[file_of(test)] += 1
        drawn.append((places[file_of(test)], test))
    return [test for _, test in sorted(drawn)]


def file_of(test: str) -> str:
    return test.partition("::")[0]


def covered(tests: Sequence[str], noted: Path) -> Coverage:
    """Return what a run of tests showed, from the files named `noted` where it was run before; stops if one fails."""
    report, lines = noted.with_suffix(".jsonl"), noted.with_suffix(".coverage")
    if not report.exists():
        unfinished = report.with_suffix(".partial")
        unfinished.unlink(missing_ok=True)
        os.environ["COVERAGE_FILE"] = str(lines)
        options = ["--cov=deepnet", "--cov-context=test", "--cov-report="]
        if exit_code([*options, f"--report-log={unfinished}", *tests], InTurn()) != OK:
            sys.exit(f"tests fail without a mutant, see {unfinished}")
        unfinished.rename(report)
    data = CoverageData(str(lines))
    data.read()
    return Coverage(durations(report), data, Path.cwd())


def with_new(coverage: Coverage, tests: Sequence[str], noted: Path) -> Coverage:
    """Return what a run showed, and which tests there are that it did not have; `noted` is written for that."""
    code = exit_code(["--collect-only", *tests], Noting(noted))
    if code != OK:
        sys.exit(f"pytest cannot collect {' '.join(tests)}")
    there = noted.read_text("utf-8").splitlines()
    return replace(coverage, new=tuple(test for test in there if test not in coverage.seconds))


def durations(report: Path) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for line in report.read_text("utf-8").splitlines():
        entry = json.loads(line)
        if entry["$report_type"] == "TestReport":
            seconds[entry["nodeid"]] = seconds.get(entry["nodeid"], 0) + entry["duration"]
    return seconds


@cache
def statement(module: Path, line: int) -> tuple[int, bool]:
    """Return the line at which the innermost statement around `line` begins, and whether importing runs it."""
    node: ast.AST = ast.parse(module.read_text("utf-8"))
    first, when_imported = line, True
    while inner := next((child for child in ast.walk(node) if is_around(child, line, node)), None):
        when_imported &= not (isinstance(node, ast.FunctionDef) and inner in node.body)
        node, first = inner, inner.lineno
    return first, when_imported


def is_around(child: ast.AST, line: int, node: ast.AST) -> TypeGuard[ast.stmt]:
    """Return whether `child` is a statement within `node` that spans the line."""
    return (
        isinstance(child, ast.stmt)
        and child is not node
        and child.lineno <= line <= (child.end_lineno or 0)
    )


class Noting:
    """Writes down which tests pytest collects, a line each."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Write them."""
        self.path.write_text("\n".join(item.nodeid for item in session.items), "utf-8")


class InTurn:
    """Has pytest run one test of each file after another."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Reorder in place."""
        keep(in_turn(item.nodeid for item in items), items)


class Only:
    """Has pytest run the given tests of those that were collected, in the given order, until `seconds` are over."""

    def __init__(self, tests: Sequence[str], seconds: float) -> None:
        self.tests = tests
        self.end = time.monotonic() + seconds

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Reorder in place, and leave the others out."""
        keep(self.tests, items)

    def pytest_runtest_protocol(self) -> bool | None:
        """Leave a test out where time is over."""
        return True if time.monotonic() > self.end else None


def keep(tests: Sequence[str], items: list[pytest.Item]) -> None:
    by_name = {item.nodeid: item for item in items}
    items[:] = [by_name[test] for test in tests if test in by_name]


def one_fails(tests: Sequence[str], patience: float, slowest: float) -> bool:
    """Return whether a test fails, on the code as it is now, in the first `patience` seconds.

    One that is at work for ten times `slowest` seconds, and a minute more, has failed.
    """
    files = dict.fromkeys(file_of(test) for test in tests)
    code = exit_code(["-x", *files], Only(tests, patience), patience + 60 + 10 * slowest)
    return code not in (OK, NO_TESTS_COLLECTED)


def exit_code(arguments: Sequence[str], plugin: object, timeout: float = math.inf) -> int | None:
    """Return pytest's exit code, from a fork of this process; None where it took longer than `timeout` seconds."""
    child = os.fork()
    if child == 0:
        end_with_pytest(arguments, plugin)
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        finished, status = os.waitpid(child, os.WNOHANG)
        if finished:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def end_with_pytest(arguments: Sequence[str], plugin: object) -> Never:
    os.setsid()
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    os._exit(pytest.main(["-q", "-p", "no:cacheprovider", *arguments], plugins=[plugin]))
