"""The catalogue is the folder: a scheme's file name is its name in recipes and commands."""

import importlib
import inspect
import pkgutil
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

import deepnet.schemes as package
from deepnet.config import build
from deepnet.errors import CheckpointError, ConfigError, suggest
from deepnet.schemes.base import ResidualScheme

TrustCode = str | Collection[str]
"""Classes "module:Class" that somebody else's files may bring, so that their code runs; one, or several."""
_OURS = f"{package.__name__.partition('.')[0]}."
_NOT_SCHEMES = ("base", "catalogue", "coefficients", "history")
UNDEFINED = {
    "mixnorm": "a row of table 2 of BranchNorm (arXiv 2305.02790) that its authors define nowhere: there is no "
    "equation to implement",
}
"""Names from the literature that no scheme can be made for, and why."""


def list_schemes() -> list[str]:
    """Return the names of the built-in schemes, in alphabetical order."""
    found = (module.name for module in pkgutil.iter_modules(package.__path__))
    return sorted(name for name in found if name not in _NOT_SCHEMES)


def scheme_class(name: str) -> type[ResidualScheme]:
    """Return the class of a built-in scheme, or of any other one named "module:Class"; raises ConfigError."""
    if ":" in name:
        return _named_class(name)
    if name in UNDEFINED:
        raise ConfigError(
            f"scheme '{name}' is {UNDEFINED[name]}; there are {', '.join(list_schemes())}"
        )
    if name not in list_schemes():
        hint = suggest(name, list_schemes()) or f"; there are {', '.join(list_schemes())}"
        raise ConfigError(f"unknown scheme '{name}'{hint}")
    kind: type[ResidualScheme] = importlib.import_module(f"{package.__name__}.{name}").Scheme
    return kind


def scheme_table() -> list[dict[str, Any]]:
    """Return name, summary, equation, source, architectures and folds_to of every built-in scheme."""
    kinds = {name: scheme_class(name) for name in list_schemes()}
    return [
        {
            "name": name,
            "summary": (inspect.getdoc(kind) or "").partition("\n")[0],
            "equation": kind.equation,
            "source": kind.source,
            "architectures": list(kind.architectures),
            "folds_to": kind.folds_to,
        }
        for name, kind in kinds.items()
    ]


def load_scheme(name: str, options: Mapping[str, Any] | None = None) -> ResidualScheme:
    """Return the scheme called `name` with those hyper-parameters; raises ConfigError that names a wrong one."""
    return build(scheme_class(name), options or {}, where="scheme")


def is_own(name: str) -> bool:
    """Return whether a name is that of a class outside the package, "module:Class"."""
    return ":" in name and not name.startswith(_OURS)


def check_trusted(name: str, trust_code: TrustCode, *, where: object) -> None:
    """Refuse a class that somebody else's files name, unless it is one of `trust_code`; nothing is imported.

    `where` is what names the scheme. Raises CheckpointError that says how to allow the class.
    """
    trusted = {trust_code} if isinstance(trust_code, str) else set(trust_code)
    if is_own(name) and name not in trusted:
        raise CheckpointError(
            f"{where} needs code that is not part of it: its scheme is the class {name!r}, which would be imported and "
            f"run; if you know that code, allow it with --trust-code {name} (in Python trust_code={name!r})"
        )


def describe_scheme(scheme: ResidualScheme) -> dict[str, Any]:
    """Return {"name": ..., option: value, ...}: what `load_scheme` needs to make it again."""
    kind = type(scheme)
    package_name, _, name = kind.__module__.rpartition(".")
    if package_name != package.__name__:
        name = f"{kind.__module__}:{kind.__name__}"
    return {"name": name, **asdict(scheme)}


def _named_class(name: str) -> type[ResidualScheme]:
    module_name, _, attribute = name.partition(":")
    try:
        kind = vars(importlib.import_module(module_name))[attribute]
    except (ImportError, KeyError) as error:
        raise ConfigError(f"scheme '{name}' cannot be imported: {error!r}") from error
    if not (isinstance(kind, type) and issubclass(kind, ResidualScheme)):
        raise ConfigError(
            f"scheme '{name}' is not a subclass of deepnet.schemes.base.ResidualScheme"
        )
    return kind
