"""What is written in a scheme's file comes out whole, and a file of one's own may be written otherwise."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest

from deepnet.schemes import branchnorm, completep, deepnorm
from deepnet.schemes.base import ResidualScheme
from deepnet.schemes.catalogue import list_schemes, scheme_class
from deepnet.survey.docstrings import FACTS, list_options, read_docstring


@pytest.mark.parametrize("name", list_schemes())
def test_every_file_says_source_cost_and_difference(name):
    written = read_docstring(scheme_class(name))
    assert set(written) == {"description", "equation", *FACTS}
    assert all(written.values()), f"schemes/{name}.py: {written}"
    assert written["description"].endswith(".")
    for option in list_options(scheme_class(name)):
        assert option["meaning"].endswith("."), f"{name}.{option['name']}"


def test_a_file_comes_out_as_it_was_written():
    written = read_docstring(branchnorm.Scheme)
    assert written["equation"] == (
        "x <- LN(x + a_t * f(x)),   a_t from 0 to 1 in T updates,   DeepNorm's beta at the start"
    )
    assert written["source"] == "Liu et al., BranchNorm, arXiv 2305.02790, equation 7."
    assert written["cost"].endswith("which is the only thing saved.")
    lines = read_docstring(completep.Scheme)["equation"].splitlines()
    assert [line.split()[0] for line in lines] == ["x", "hidden", "hidden", "softmax(q"]
    assert not any(line.startswith(" ") for line in lines)  # they begin alike in the file


def test_the_options_of_a_scheme_are_listed_with_choices_and_meaning():
    convention, optimizer, *_ = list_options(deepnorm.Scheme)
    assert convention == {
        "name": "convention",
        "choices": ["paper", "essay"],
        "default": "paper",
        "meaning": "The paper's coefficients, or the essay's optimiser-dependent ones.",
    }
    assert optimizer["choices"] == ["sgd", "adam", "lamb"]
    assert optimizer["default"] is None
    assert list_options(branchnorm.Scheme)[0]["choices"] is None


@dataclass(frozen=True, kw_only=True)
class Own(ResidualScheme):
    """What a scheme of one's own says of itself.

    And more.
    """

    equation: ClassVar[str] = "x <- x"
    source: ClassVar[str] = "an example"

    strength: float = 2.0
    kind: Literal["a", "b"] = "a"
    """Which of two."""


@dataclass(frozen=True, kw_only=True)
class Longer(Own):
    gated: bool = False
    """Whether there is a gate."""


def test_a_class_speaks_for_a_file_that_is_written_otherwise():
    assert read_docstring(Own) == {
        "description": "What a scheme of one's own says of itself.",
        "equation": "x <- x",
        "source": "an example",
        "cost": "",
        "differs": "",
    }
    assert [(one["name"], one["meaning"]) for one in list_options(Longer)] == [
        ("strength", ""),
        ("kind", "Which of two."),
        ("gated", "Whether there is a gate."),
    ]
    assert list_options(Longer)[-1]["choices"] == [False, True]
