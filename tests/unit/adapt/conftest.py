"""Small models of other people's, as docs/adoption.py makes them for its tables."""

from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def zoo() -> SimpleNamespace:
    """Return the makers (`zoo.bert()`, ..., `zoo.MODELS` by name) and `zoo.outputs(model)`."""
    return SimpleNamespace(
        **run_path(str(Path(__file__).parents[3] / "docs" / "adoption.py"), run_name="zoo")
    )
