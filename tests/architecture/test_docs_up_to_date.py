"""The pages that are written from the code are as the code is now, and cover all of it."""

import runpy
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from deepnet.pipeline.recipe import Recipe
from deepnet.schemes.catalogue import list_schemes, scheme_class

DOCS = Path(__file__).parents[2] / "docs"
SVG = "{http://www.w3.org/2000/svg}"


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


def test_what_a_scheme_refuses_is_documented(generator: dict[str, Any]) -> None:
    text = generator["pages"]()["schemes.md"]
    for name, refused in (
        ("deepnorm", "`placement = \"pre\"`: 'placement' has no effect under convention 'paper'"),
        ("branchnorm", "`T = -1`: T is -1; expected at least 1 update"),
        ("ds_init", "`merged = true`: merged attention"),
    ):
        assert refused in text.partition(f"## {name}\n")[2].partition("\n## ")[0]
    assert "`mixnorm` is a row of table 2 of BranchNorm" in text


@pytest.fixture(scope="module")
def family() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "family_tree.py"), run_name="family_tree")


def test_the_family_tree_is_up_to_date(family: dict[str, Any], tmp_path: Path) -> None:
    assert family["is_up_to_date"](), "run: make docs"
    (tmp_path / "old.svg").write_text("<svg/>")
    assert not family["is_up_to_date"](tmp_path / "old.svg")
    assert not family["is_up_to_date"](tmp_path / "missing.svg")


def test_the_family_tree_has_every_scheme_and_every_edge() -> None:
    drawn = ElementTree.fromstring((DOCS / "images" / "family_tree.svg").read_text())
    edges = [tuple(path.get("data-edge", "").split()) for path in drawn.iter(f"{SVG}path")]
    declared = [(p, name) for name in list_schemes() for p in scheme_class(name).grew_out_of]
    assert sorted(edges) == sorted(declared)
    shown = [group.findtext(f"{SVG}text") for group in drawn.iter(f"{SVG}g")]
    assert sorted(name or "" for name in shown) == list_schemes()


def test_the_family_tree_is_legible_at_800_pixels() -> None:
    drawn = ElementTree.fromstring((DOCS / "images" / "family_tree.svg").read_text())
    width = float(drawn.get("viewBox", "").split()[2])
    assert float(drawn.get("font-size", 0)) * 800 / width >= 9
    boxes = [group.find(f"{SVG}rect") for group in drawn.iter(f"{SVG}g")]
    places = [
        tuple(float(box.get(side, 0)) for side in ("x", "y", "width", "height"))
        for box in boxes
        if box is not None
    ]
    for (x, y, w, h), (left, top, wide, high) in combinations(places, 2):
        assert x + w <= left or left + wide <= x or y + h <= top or top + high <= y


def test_whatever_grew_out_of_a_scheme_stands_to_its_right() -> None:
    drawn = ElementTree.fromstring((DOCS / "images" / "family_tree.svg").read_text())
    x = {
        group.findtext(f"{SVG}text"): float(group.find(f"{SVG}rect").get("x"))  # type: ignore[union-attr,arg-type]
        for group in drawn.iter(f"{SVG}g")
    }
    for name in list_schemes():
        assert all(x[parent] < x[name] for parent in scheme_class(name).grew_out_of)
