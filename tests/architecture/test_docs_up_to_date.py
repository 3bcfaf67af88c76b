"""The pages that are written from the code are as the code is now, and cover all of it."""

import re
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
        words = ("\n```\n", "- Source: ", "- Cost: ", "- Differs: ", "- Folds to: ")
        assert all(word in about for word in words)
        assert f"\n| [{name}](#{name}) | " in text


def test_the_scheme_that_contributing_shows_is_the_real_one() -> None:
    root = DOCS.parent
    section = (root / "CONTRIBUTING.md").read_text().partition("## Adding a scheme")[2]
    shown = re.findall(
        r"^```python\n(.*?)^```", section.partition("\n## ")[0], re.DOTALL | re.MULTILINE
    )
    files = ("src/deepnet/schemes/post_ln_init.py", "tests/unit/schemes/cases.py")
    for path, block in zip(files, shown, strict=True):
        lines = [line.strip() for line in (root / path).read_text().splitlines()]
        assert "\n".join(line.strip() for line in block.splitlines()) in "\n".join(lines), path


def test_what_a_scheme_refuses_is_documented(generator: dict[str, Any]) -> None:
    text = generator["pages"]()["schemes.md"]
    for name, refused in (
        ("deepnorm", "`placement = \"pre\"`: 'placement' has no effect under convention 'paper'"),
        ("branchnorm", "`T = -1`: T is -1; expected at least 1 update"),
        ("ds_init", "`merged = true`: merged attention"),
    ):
        assert refused in text.partition(f"## {name}\n")[2].partition("\n## ")[0]
    assert "`mixnorm` is a row of table 2 of BranchNorm" in text
