"""The catalogue is the folder: an experiment's file name, with "-" for "_", is its name in the command."""

import importlib
import pkgutil
from typing import Any

import deepnet.experiments as package
from deepnet.errors import ConfigError, suggest
from deepnet.experiments.base import Experiment

_NOT_EXPERIMENTS = (
    *("base", "catalogue", "cells", "comparison", "depth_picture", "measures"),
    *("pictures", "reproduce", "tables", "verdicts", "watching"),
)


def list_experiments() -> list[str]:
    """Return the names of the experiments, in alphabetical order."""
    found = (module.name for module in pkgutil.iter_modules(package.__path__))
    return sorted(name.replace("_", "-") for name in found if name not in _NOT_EXPERIMENTS)


def experiment_class(name: str) -> type[Experiment]:
    """Return the class of an experiment; raises ConfigError, with the nearest name, where there is none."""
    known = list_experiments()
    if name not in known:
        hint = suggest(name, known) or f"; there are {', '.join(known)}"
        raise ConfigError(f"there is no experiment '{name}'{hint}")
    module = importlib.import_module(f"{package.__name__}.{name.replace('-', '_')}")
    kind: type[Experiment] = module.Study
    return kind


def experiment_table() -> list[dict[str, Any]]:
    """Return name, claim, source, comparable, hours and full_hours of every experiment, in alphabetical order."""
    return [experiment_row(name) for name in list_experiments()]


def experiment_row(name: str) -> dict[str, Any]:
    """Return what the catalogue says of one experiment."""
    kind = experiment_class(name)
    return {
        "name": name,
        "claim": kind.claim,
        "source": kind.source,
        "comparable": kind.comparable,
        "hours": kind.hours,
        "full_hours": kind.full_hours,
    }
