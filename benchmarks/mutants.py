"""How good the tests are: change the code in one place, run the tests that cover it, and see whether one fails.

    pip install cosmic-ray
    python benchmarks/mutants.py --out /tmp/mutants --sample 600
    python benchmarks/mutants.py --out /tmp/mutants --survivors

The mutants are cosmic-ray's, a random sample of all there are, the same for the same --seed. They are made in a copy of
the repository under --out; what has been tried is in databases there, and the same command goes on where it stopped. A
mutant on which the tests run longer than --timeout seconds counts as killed. Prints the share killed per package.
"""

import argparse
import ast
import hashlib
import os
import random
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, WorkerOutcome, WorkResult

ROOT = Path(__file__).parent.parent
COPIED = ("src", "tests", "docs", "pyproject.toml", "README.md", "CHANGELOG.md")
SKIPPED = WorkResult(WorkerOutcome.SKIPPED)


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

    def command(self) -> list[str]:
        """Return what runs its tests, up to the first failure."""
        tests = [f"tests/{test}" for test in self.tests]
        return [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]


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
    options.out.mkdir(parents=True, exist_ok=True)
    out = options.out.resolve()
    refresh_copy(out)
    os.chdir(out / "copy")
    os.environ["PYTHONPATH"] = str(out / "copy" / "src")
    with ExitStack() as stack:
        databases = {t: stack.enter_context(use_db(out / f"{t.name}.sqlite")) for t in TARGETS}
        if not any(database.num_work_items for database in databases.values()):
            draw_sample(databases, options.sample, options.seed)
        if options.survivors:
            show_survivors(databases)
        else:
            for target, database in databases.items():
                try_pending(target, database, options.timeout)
        show_scores(databases)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the copy and databases")
    parser.add_argument("--sample", type=int, default=600, help="mutants of all packages together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one mutant's tests")
    parser.add_argument("--survivors", action="store_true", help="print them instead of going on")
    return parser.parse_args()


def refresh_copy(out: Path) -> None:
    """Copy the repository anew: a kill may have left a mutant. Stops where the code is no longer what was sampled."""
    digest, noted = hashlib.sha256(), out / "code.sha256"
    for path in sorted((ROOT / "src").rglob("*.py")):
        digest.update(path.read_bytes())
    if noted.exists() and noted.read_text() != digest.hexdigest():
        sys.exit(f"the code has changed since {out} was begun; name another folder in --out")
    noted.write_text(digest.hexdigest())
    for name in COPIED:
        source, copy = ROOT / name, out / "copy" / name
        if source.is_dir():
            shutil.copytree(source, copy, dirs_exist_ok=True)
        else:
            shutil.copy2(source, copy)


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
                drawable.append((database, item.job_id))
    random.Random(seed).shuffle(drawable)
    for database, job in drawable[size:]:
        database.set_result(job, SKIPPED)
    print(f"{min(size, len(drawable))} of {len(drawable)} mutants are drawn")


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


def try_pending(target: Target, database: WorkDB, timeout: float) -> None:
    """Run the tests on every mutant that was drawn and not tried yet; stops where they fail without one."""
    pending = list(database.pending_work_items)
    if not pending:
        return
    if subprocess.run(target.command(), stdout=subprocess.DEVNULL).returncode:
        sys.exit(
            f"the tests of {target.name} fail without a mutant: {shlex.join(target.command())}"
        )
    for number, item in enumerate(pending, start=1):
        result = mutate_and_test(item.mutations, shlex.join(target.command()), timeout)
        database.set_result(item.job_id, result)
        print(f"{target.name} {number}/{len(pending)}: {result.test_outcome}", flush=True)


def show_survivors(databases: dict[Target, WorkDB]) -> None:
    for database in databases.values():
        for _, result in database.results:
            if result.worker_outcome == WorkerOutcome.NORMAL and not result.is_killed:
                print(result.diff, "\n")


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
