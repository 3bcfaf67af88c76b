"""The recipes that come with the package: one file each, whose name is the recipe's."""

from importlib import resources
from pathlib import Path

from deepnet.errors import ConfigError, suggest


def list_recipes() -> list[str]:
    """Return the names of the shipped recipes, in alphabetical order."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def shipped_recipe(name: str) -> Path:
    """Return the file of a shipped recipe; raises ConfigError, with the nearest name, where there is none."""
    if name not in list_recipes():
        raise ConfigError(f"there is no shipped recipe '{name}'{hint_at_recipe(name)}")
    return _folder() / f"{name}.toml"


def hint_at_recipe(name: str) -> str:
    """Return the end of an error: the shipped recipe nearest to `name`, if any is near, and how to see them all."""
    near = suggest(name, list_recipes())
    return f"{near or ';'} 'deepnet recipes' lists them all"


def _folder() -> Path:
    return Path(str(resources.files("deepnet") / "recipes"))
