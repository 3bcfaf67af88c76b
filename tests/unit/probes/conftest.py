"""The small models of docs/adoption.py."""

from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def zoo() -> SimpleNamespace:
    """Return the names of docs/adoption.py."""
    path = Path(__file__).parents[3] / "docs" / "adoption.py"
    return SimpleNamespace(**run_path(str(path), run_name="zoo"))
