"""Models named on a command line as "module:factory"."""

import importlib
from typing import Any

from torch import Tensor, nn

from deepnet.audit.inputs import Inputs
from deepnet.errors import ConfigError


def build_from_factory(name: str) -> tuple[nn.Module, Inputs | None]:
    """Call the function named "module:factory" and return the model and the example inputs it gave, if any.

    The factory takes no arguments and returns a module, or a module and its inputs (a tuple, a mapping or a tensor).
    Raises ConfigError where there is no such factory or it returns something else.
    """
    made = _factory(name)()
    if isinstance(made, nn.Module):
        return made, None
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module):
        model, inputs = made
        return model, (inputs,) if isinstance(inputs, Tensor) else inputs
    raise ConfigError(
        f"'{name}' returned {type(made).__name__}; expected a torch module, or a module and a tuple of example inputs"
    )


def _factory(name: str) -> Any:
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(
            f"'{name}' names no factory; expected MODULE:FACTORY, such as my_model:build"
        )
    try:
        factory = vars(importlib.import_module(module_name))[attribute]
    except (ImportError, KeyError) as error:
        raise ConfigError(f"'{name}' cannot be imported: {error!r}") from error
    if not callable(factory):
        raise ConfigError(f"'{name}' is not a function that returns a model")
    return factory
