"""The shape of the package: no import cycles, torch only where it is used, names that say something."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import deepnet

PACKAGE = Path(deepnet.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))


def _module(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path) -> set[str]:
    """Return what a file imports of ours when it is loaded or its types are checked: not in functions."""
    known, found = {_module(file) for file in FILES}, set()
    for node in _outside_functions(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in names} & known
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
    return found - {_module(path)}


def _outside_functions(node: ast.AST) -> Iterator[ast.stmt]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt) and not isinstance(child, ast.FunctionDef):
            yield child
            yield from _outside_functions(child)


def test_the_imports_of_a_block_for_type_checking_are_seen():
    assert "deepnet.transformer.models" in _imports(PACKAGE / "__init__.py")


def test_there_is_no_import_cycle():
    graph = {_module(path): _imports(path) for path in FILES}
    assert sum(map(len, graph.values())) > 100
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert set(order) == {_module(path) for path in FILES}


def test_importing_deepnet_and_asking_for_help_does_not_import_torch():
    code = "import sys, deepnet, deepnet.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_file_has_a_name_that_says_nothing():
    empty = {"utils", "util", "helpers", "helper", "misc", "common", "core"}
    assert [path for path in FILES if path.stem in empty] == []


def test_every_scheme_file_stays_under_150_lines():
    long = [
        p.name for p in (PACKAGE / "schemes").glob("*.py") if len(p.read_text().splitlines()) > 150
    ]
    # the contract itself, and three schemes with modules of their own (streams' maps in two forms, a sphere)
    assert sorted(long) == ["base.py", "hyper_connections.py", "mhc.py", "ngpt.py"]
