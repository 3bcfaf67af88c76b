"""How good the tests are: change the code in one place, run the tests that cover it, and see whether one fails.

    pip install cosmic-ray pytest-cov pytest-reportlog
    python benchmarks/mutants.py --out /tmp/mutants --sample 600
    python benchmarks/mutants.py --out /tmp/mutants --survivors

The mutants are cosmic-ray's, a random sample of all there are, the same for the same --seed. They are made in a copy of
the repository under --out; what has been tried is in databases there, and the same command goes on where it stopped. A
mutant that is alive after --patience seconds of its tests counts as a survivor; one on which a test takes ten times as
long as the slowest without it, and a minute more, as killed. Prints the share killed per package. --again tries the
survivors anew, with the tests that were written since before the others.
"""

import argparse
import ast
import hashlib
import multiprocessing
import os
import random
import shutil
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import unified_diff
from itertools import islice
from multiprocessing.pool import Pool
from multiprocessing.queues import Queue
from pathlib import Path
from typing import NamedTuple

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import MutationVisitor, use_mutation
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkItem, WorkResult

from mutant_tests import Coverage, covered, one_fails, with_new

ROOT = Path(__file__).parent.parent
COPIED = ("src", "tests", "docs", "benchmarks", "pyproject.toml", "README.md", "CHANGELOG.md")
SKIPPED = WorkResult(WorkerOutcome.SKIPPED)


class Task(NamedTuple):
    """A mutant, the tests that cover it, the seconds that they are given, and those that the slowest of them takes."""

    item: WorkItem
    tests: list[str]
    patience: float
    slowest: float


@dataclass(frozen=True)
class Target:
    """Some modules of a package, and the tests that cover them."""

    name: str
    modules: tuple[str, ...]
    """Globs below src/deepnet."""
    tests: tuple[str, ...]
    """Files and folders below tests."""

    @property
    def package(self) -> str:
        """Return the package that its mutants count for."""
        return self.modules[0].partition("/")[0]

    def paths(self) -> list[Path]:
        """Return the modules, in the copy that is the working directory."""
        found = {path for glob in self.modules for path in Path("src/deepnet").glob(glob)}
        return sorted(path for path in found if path.name != "__init__.py")

    def files(self) -> list[str]:
        """Return what pytest is given."""
        return [f"tests/{test}" for test in self.tests]


def _unit(area: str, *names: str) -> tuple[str, ...]:
    return tuple(f"unit/{area}/test_{area}_{name}.py" for name in names)


_SCHEMES = "unit/schemes"
_BATCHING = (*_unit("data", "batching", "loader"), "properties/test_data_batching_properties.py")
TARGETS = (
    Target("transformer", ("transformer/*.py",), ("unit/transformer", "parity", _SCHEMES)),
    Target("schemes", ("schemes/*.py",), (_SCHEMES, "unit/transformer")),
    Target("folding", ("folding/*.py",), ("unit/folding",)),
    Target(
        "beam",
        ("decoding/beam.py",),
        (*_unit("decoding", "beam", "translate"), "properties/test_decoding_invariance.py"),
    ),
    Target(
        "loss",
        ("training/loss.py", "training/cross_entropy.py"),
        _unit("training", "cross_entropy", "loss", "one_text"),
    ),
    Target(
        "schedules",
        ("training/optimization/schedules.py",),
        ("unit/training/optimization", "unit/training/guard/test_training_going_back.py"),
    ),
    Target(
        "updates",
        ("training/update.py", "training/checkpoint/*.py", "training/optimization/averaging.py"),
        ("unit/training", "properties/test_training_resume.py"),
    ),
    Target("batching", ("data/batching.py",), _BATCHING),
    Target("split", ("data/split.py",), _unit("data", "split", "one_text", "prepare")),
    Target("cleaning", ("data/cleaning.py",), _unit("data", "cleaning", "one_text", "prepare")),
)


def main() -> None:
    options = parsed()
    out = options.out = options.out.resolve()
    (out / "copy").mkdir(parents=True, exist_ok=True)
    check_code(out)
    refresh_copy(ROOT, out / "copy")
    os.chdir(out / "copy")
    with ExitStack() as stack:
        databases = {t: stack.enter_context(use_db(out / f"{t.name}.sqlite")) for t in TARGETS}
        if not any(database.num_work_items for database in databases.values()):
            draw_sample(databases, options.sample, options.seed)
        if options.survivors:
            show_survivors(databases)
        else:
            try_all(databases, options)
        show_scores(databases)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the copies and databases"
    )
    parser.add_argument("--sample", type=int, default=600, help="mutants of all packages together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--patience", type=float, default=120, help="seconds of tests for a mutant")
    parser.add_argument("--again", action="store_true", help="try those that survived once more")
    parser.add_argument("--survivors", action="store_true", help="print them instead of going on")
    return parser.parse_args()


def check_code(out: Path) -> None:
    """Stop where the code is no longer what was sampled."""
    digest, noted = hashlib.sha256(), out / "code.sha256"
    for path in sorted((ROOT / "src").rglob("*.py")):
        digest.update(path.read_bytes())
    if noted.exists() and noted.read_text() != digest.hexdigest():
        sys.exit(f"the code has changed since {out} was begun; name another folder in --out")
    noted.write_text(digest.hexdigest())


def refresh_copy(source: Path, copy: Path) -> None:
    """Copy the repository anew, with what Python compiled of it: a kill may have left a mutant."""
    for name in COPIED:
        if (source / name).is_dir():
            leave_out = shutil.ignore_patterns(".venv", "*.partial")
            shutil.copytree(source / name, copy / name, dirs_exist_ok=True, ignore=leave_out)
        else:
            shutil.copy2(source / name, copy / name)


def draw_sample(databases: dict[Target, WorkDB], size: int, seed: int) -> None:
    """Fill each database with all mutants of its modules, and mark those outside the sample as skipped."""
    drawable = []
    for target, database in databases.items():
        init(target.paths(), database, {})
        left_out = {path: annotation_lines(path) for path in target.paths()}
        for item in sorted(database.work_items, key=lambda item: place(item.mutations[0])):
            if is_in(item.mutations[0], left_out):
                database.set_result(item.job_id, SKIPPED)
            else:
                drawable.append((database, item))
    random.Random(seed).shuffle(drawable)
    drawn = list(islice((item.job_id for _, item in drawable if can_be_made(item)), size))
    for database, item in drawable:
        if item.job_id not in drawn:
            database.set_result(item.job_id, SKIPPED)
    print(f"{len(drawn)} of {len(drawable)} mutants are drawn")


def can_be_made(item: WorkItem) -> bool:
    """Return whether cosmic-ray can make a mutant; of `except (a.B, c.D)` it cannot."""
    mutation = item.mutations[0]
    operator = get_operator(mutation.operator_name)(**mutation.operator_args)
    try:
        source = mutation.module_path.read_text("utf-8")
        return MutationVisitor.mutate_code(source, operator, mutation.occurrence) is not None
    except AttributeError:
        return False


def place(mutation: MutationSpec) -> tuple[object, ...]:
    return str(mutation.module_path), mutation.operator_name, mutation.occurrence


def annotation_lines(path: Path) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return where a module's annotations begin and end: what they say changes nothing."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        for name in ("annotation", "returns"):
            if isinstance(noted := getattr(node, name, None), ast.expr):
                end = (noted.end_lineno or 0, noted.end_col_offset or 0)
                found.append(((noted.lineno, noted.col_offset), end))
    return found


def is_in(mutation: MutationSpec, left_out: dict[Path, list]) -> bool:
    start = tuple(mutation.start_pos)
    return any(begin <= start < end for begin, end in left_out[mutation.module_path])


def try_all(databases: dict[Target, WorkDB], options: argparse.Namespace) -> None:
    """Give every mutant that was drawn and not tried yet to the tests that cover it."""
    os.environ.update(PYTHONPATH=str(Path.cwd() / "src"), OMP_NUM_THREADS="1")
    sys.path.insert(0, str(Path.cwd() / "src"))
    for target, database in databases.items():
        items = list(database.pending_work_items)
        if options.again:
            items += survivors(database)
        if items:
            noted = options.out / target.name
            coverage = covered(target.files(), noted)
            if options.again:
                coverage = with_new(coverage, target.files(), noted.with_suffix(".tests"))
            with pool(options) as workers:
                tried = workers.imap_unordered(
                    attempt, [task(item, coverage, options.patience) for item in items]
                )
                for number, (job, result) in enumerate(tried, start=1):
                    database.set_result(job, result)
                    print(f"{target.name} {number}/{len(items)}: {result.test_outcome}", flush=True)


def survivors(database: WorkDB) -> list[WorkItem]:
    alive = {job for job, result in database.results if survived(result)}
    return [item for item in database.work_items if item.job_id in alive]


def survived(result: WorkResult) -> bool:
    return result.worker_outcome == WorkerOutcome.NORMAL and not result.is_killed


def pool(options: argparse.Namespace) -> Pool:
    """Return processes, each of which has a copy of the repository to itself."""
    numbers = multiprocessing.get_context("fork").Queue()
    for number in range(options.processes):
        numbers.put(number)
    start = enter_copy, (numbers, options.out / "copies")
    return multiprocessing.get_context("fork").Pool(options.processes, *start)


def enter_copy(numbers: Queue, copies: Path) -> None:
    copy = copies / str(numbers.get())
    copy.mkdir(parents=True, exist_ok=True)
    refresh_copy(Path.cwd(), copy)
    os.chdir(copy)
    sys.dont_write_bytecode = True
    os.environ["PYTHONPATH"] = sys.path[0] = str(copy / "src")


def task(item: WorkItem, coverage: Coverage, patience: float) -> Task:
    """Return what is known of a mutant before it is tried."""
    tests = coverage.of(item.mutations[0].module_path, item.mutations[0].start_pos[0])
    return Task(item, tests, patience, max(coverage.seconds.get(test, 0) for test in tests))


def attempt(task: Task) -> tuple[str, WorkResult]:
    """Return a mutant's job and what became of it."""
    item, tests, patience, slowest = task
    mutation = item.mutations[0]
    operator = get_operator(mutation.operator_name)(**mutation.operator_args)
    with use_mutation(mutation.module_path, operator, mutation.occurrence) as (before, after):
        outcome = (
            TestOutcome.KILLED if one_fails(tests, patience, slowest) else TestOutcome.SURVIVED
        )
    lines = (before.splitlines(), after.splitlines())
    difference = "\n".join(unified_diff(*lines, str(mutation.module_path), lineterm="", n=2))
    return item.job_id, WorkResult(WorkerOutcome.NORMAL, f"{len(tests)} tests", outcome, difference)


def show_survivors(databases: dict[Target, WorkDB]) -> None:
    for database in databases.values():
        for _, result in database.results:
            if survived(result):
                print(f"{result.diff}\n{result.output}\n")


def show_scores(databases: dict[Target, WorkDB]) -> None:
    """Print per package how many mutants were tried and which share of them was killed."""
    tried: Counter[str] = Counter()
    killed: Counter[str] = Counter()
    for target, database in databases.items():
        for _, result in database.results:
            if result.worker_outcome == WorkerOutcome.NORMAL:
                tried[target.package] += 1
                killed[target.package] += result.is_killed
    for package, number in tried.items():
        print(
            f"{package:12} {killed[package]:4} of {number:4} killed, {killed[package] / number:.1%}"
        )
    if tried:
        share = killed.total() / tried.total()
        print(f"{'all':12} {killed.total():4} of {tried.total():4} killed, {share:.1%}")


if __name__ == "__main__":
    main()
