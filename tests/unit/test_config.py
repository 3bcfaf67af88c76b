"""Recipes as nested sections: precedence, overrides, and errors that name the key."""

from dataclasses import dataclass
from typing import Annotated

import pytest
from pydantic import Field

from deepnet.config import Section, build, override, read_toml
from deepnet.errors import ConfigError


class Inner(Section):
    """A section."""

    num_heads: Annotated[int, Field(ge=1)] = 8
    """Heads."""
    rate: float = 0.1
    """Rate."""


class Outer(Section):
    """Sections."""

    model: Inner = Inner()
    """The model."""


@dataclass(frozen=True, kw_only=True)
class Plain:
    power: float = 0.5


def test_overrides_are_read_as_toml_else_as_text_and_leave_the_input_alone():
    data = {"model": {"num_heads": 4}}
    found = override(
        data, ["model.num_heads=2", "data.path=a b.txt", "x.on=true", "x.list=[1, 2]", "x.lr=1e-3"]
    )
    assert found == {
        "model": {"num_heads": 2},
        "data": {"path": "a b.txt"},
        "x": {"on": True, "list": [1, 2], "lr": 1e-3},
    }
    assert data == {"model": {"num_heads": 4}}


@pytest.mark.parametrize("text", ["model.num_heads", "=3"])
def test_an_assignment_without_key_or_value_is_refused(text):
    with pytest.raises(ConfigError, match=r"section\.key=value"):
        override({}, [text])


def test_a_value_is_no_section():
    with pytest.raises(ConfigError, match="'a' is a value"):
        override({"a": 1}, ["a.b=2"])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"model": {"num_head": 2}}, r"unknown key 'model\.num_head'; did you mean 'num_heads'"),
        ({"modle": {}}, r"unknown key 'modle'; did you mean 'model'"),
        ({"model": {"num_heads": "many"}}, r"'model\.num_heads' is 'many'.*integer"),
        ({"model": {"num_heads": 0}}, r"'model\.num_heads' is 0.*greater than or equal to 1"),
        ({"zzz": 1}, r"unknown key 'zzz'; the recipe has model"),
    ],
)
def test_errors_name_the_key_and_what_was_expected(data, words):
    with pytest.raises(ConfigError, match=words):
        build(Outer, data)


def test_every_wrong_key_has_its_line():
    with pytest.raises(ConfigError) as error:
        build(Outer, {"model": {"num_heads": 0, "rat": 1.0}})
    assert len(str(error.value).splitlines()) == 2


def test_a_dataclass_refuses_unknown_keys_too():
    assert build(Plain, {"power": 0.25}) == Plain(power=0.25)
    with pytest.raises(ConfigError, match=r"'scheme\.powr'; did you mean 'power'"):
        build(Plain, {"powr": 0.25}, where="scheme")


def test_a_file_that_is_no_toml_or_not_there(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_toml(tmp_path / "missing.toml")
    (tmp_path / "bad.toml").write_text("a = [")
    with pytest.raises(ConfigError, match="not a TOML file"):
        read_toml(tmp_path / "bad.toml")
    (tmp_path / "latin.toml").write_bytes(b'a = "\xff"')
    with pytest.raises(ConfigError, match="not a TOML file"):
        read_toml(tmp_path / "latin.toml")
