"""docs/adoption.md says what happens today, and nothing in it is wrong."""

from pathlib import Path
from runpy import run_path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_tables_are_up_to_date():
    """Every scheme is put on every model again, saved, restored, undone and folded."""
    text = run_path(str(DOCS / "adoption.py"), run_name="tables")["page"]()
    assert "NO |" not in text, "undo left something behind"
    assert "OFF BY" not in text, "a restored or folded model computes something else"
    assert text == (DOCS / "adoption.md").read_text(encoding="utf-8"), "run: make docs"
