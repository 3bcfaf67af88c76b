"""The pages that are written from the code are as the code is now, and cover all of it."""

import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

from deepnet.pipeline.recipe import Recipe
from deepnet.schemes.catalogue import list_schemes

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "generate.py"), run_name="generate")


def test_generated_pages_are_up_to_date(generator: dict[str, Any]) -> None:
    assert generator["outdated"](DOCS) == [], "run: make docs"


def test_a_changed_or_missing_page_is_noticed(generator: dict[str, Any], tmp_path: Path) -> None:
    shutil.copy(DOCS / "recipes.md", tmp_path)
    (tmp_path / "schemes.md").write_text("# Residual schemes\n")
    assert generator["outdated"](tmp_path) == ["schemes.md"]
    (tmp_path / "recipes.md").unlink()
    assert generator["outdated"](tmp_path) == ["recipes.md", "schemes.md"]


def test_every_key_of_every_section_is_documented(generator: dict[str, Any]) -> None:
    text = generator["pages"]()["recipes.md"]
    for name, section in Recipe.model_fields.items():
        assert f"## [{name}]" in text
        for key, field in getattr(section.annotation, "model_fields", {}).items():
            assert f"| `{key}` |" in text
            assert field.description, f"{name}.{key} has no docstring"


def test_every_scheme_is_documented(generator: dict[str, Any]) -> None:
    text = generator["pages"]()["schemes.md"]
    for name in list_schemes():
        about = text.partition(f"## {name}\n")[2].partition("\n## ")[0]
        assert all(word in about for word in ("LN(", "- Source: ", "- Cost: ", "- Differs: "))
