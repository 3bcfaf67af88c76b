"""Every scheme of the catalogue says what it changes and what it grew out of; together they are one family."""

import re
from dataclasses import dataclass, fields
from graphlib import TopologicalSorter
from typing import ClassVar, get_args

import pytest

from deepnet.errors import SchemeError
from deepnet.schemes import pre_ln
from deepnet.schemes.base import (
    Change,
    Ends,
    Policy,
    ResidualScheme,
    Site,
    SitePlan,
    StackContext,
    StackPlan,
)
from deepnet.schemes.catalogue import CHANGES, list_schemes, scheme_class, scheme_row, scheme_table

NAMES = list_schemes()


@pytest.mark.parametrize("name", NAMES)
def test_every_scheme_says_itself_what_it_changes(name):
    declared = vars(scheme_class(name)).get("changes")
    assert declared in get_args(Change), (
        f"schemes/{name}.py: add to its class: changes: ClassVar[Change] = one of {get_args(Change)}"
    )


@pytest.mark.parametrize("name", [name for name in NAMES if name != "post_ln"])
def test_every_scheme_but_the_first_says_itself_what_it_grew_out_of(name):
    parents = vars(scheme_class(name)).get("grew_out_of", ())
    assert parents, (
        f"schemes/{name}.py: add to its class the schemes whose equation it changes: "
        'grew_out_of: ClassVar[tuple[str, ...]] = ("pre_ln",)'
    )
    assert set(parents) <= {*NAMES} - {name}
    assert len(set(parents)) == len(parents)


def test_all_schemes_descend_from_the_first():
    order = [
        *TopologicalSorter(
            {row["name"]: row["grew_out_of"] for row in scheme_table()}
        ).static_order()
    ]  # raises CycleError
    assert order[0] == "post_ln"
    assert scheme_row("post_ln")["grew_out_of"] == []


def year(name):
    """Return the year of a scheme's source, from its arXiv number where it has one."""
    source = scheme_class(name).source
    number = re.search(r"arXiv (\d\d)\d\d\.\d{5}", source)
    return 2000 + int(number[1]) if number else int(re.search(r"\b20\d\d\b", source)[0])


@pytest.mark.parametrize("name", NAMES)
def test_no_scheme_is_older_than_what_it_grew_out_of(name):
    # Pre-LN was in use (arXiv 1809.10853, GPT-2) before the paper that analysed it, which is its source here
    years = {"pre_ln": 2018}
    parents = scheme_class(name).grew_out_of
    assert all(years.get(parent, year(parent)) <= year(name) for parent in parents)


def test_what_is_changed_is_explained():
    assert tuple(CHANGES) == get_args(Change)


def test_a_scheme_of_the_catalogue_that_does_not_say_what_it_changes_is_an_error(monkeypatch):
    monkeypatch.delattr(pre_ln.Scheme, "changes")
    with pytest.raises(SchemeError, match=r"'pre_ln' says that it changes None.*one of 'norm'"):
        scheme_table()


def test_a_word_that_nobody_knows_is_an_error(monkeypatch):
    monkeypatch.setattr(pre_ln.Scheme, "changes", "norms")
    with pytest.raises(SchemeError, match=r"'pre_ln' says that it changes 'norms'"):
        scheme_table()


@dataclass(frozen=True, kw_only=True)
class Own(ResidualScheme):
    equation: ClassVar[str] = "x <- x"


def test_a_scheme_of_ones_own_need_not_say_it():
    row = scheme_row(f"{__name__}:Own")
    assert (row["changes"], row["grew_out_of"], row["summary"]) == (None, [], "")


@dataclass(frozen=True, kw_only=True)
class Described(ResidualScheme):
    """The stream as it is.

    And more about it.
    """

    equation: ClassVar[str] = "x <- x"


def test_the_first_line_of_what_a_scheme_says_of_itself_is_its_summary():
    assert scheme_row(f"{__name__}:Described")["summary"] == "The stream as it is."


@pytest.mark.parametrize(
    "kind", [Site, StackContext, SitePlan, StackPlan, Ends, Policy, *map(scheme_class, NAMES)]
)
def test_what_may_grow_is_given_by_name_alone_and_stays_as_it_is(kind):
    assert vars(kind)["__dataclass_params__"].frozen
    assert all(field.kw_only for field in fields(kind))
