"""The catalogue is the folder: a scheme's file name is its name in recipes and commands."""

import importlib
import inspect
import pkgutil
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

import deepnet.schemes as package
from deepnet.config import build
from deepnet.errors import CheckpointError, ConfigError, SchemeError, suggest
from deepnet.schemes.base import Change, ResidualScheme

TrustCode = str | Collection[str]
"""Classes "module:Class" that somebody else's files may bring, so that their code runs; one, or several."""
_OURS = f"{package.__name__.partition('.')[0]}."
_NOT_SCHEMES = ("base", "catalogue", "coefficients", "history", "values")
UNDEFINED = {
    "mixnorm": "a row of table 2 of BranchNorm (arXiv 2305.02790) that its authors define nowhere: there is no "
    "equation to implement",
    "seed_norm": "SeeDNorm (arXiv 2510.22777), whose start we could not read: a review has its equation alone",
    "span_norm": "SpanNorm (arXiv 2601.22580), of which we found no equation",
}
"""Names from the literature that we made no scheme of, and why."""
CHANGES: dict[Change, str] = {
    "norm": "where the norms stand, or what stands in their place",
    "scale": "what the skip or the branch is multiplied by",
    "init": "how the weights start",
    "schedule": "what becomes of it while the model trains",
    "stream": "what is handed from site to site",
    "values": "what attention reads beside its input",
}
"""What a scheme can change, by which the catalogue is grouped, in its order."""


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
    """Return `scheme_row` of every built-in scheme, in alphabetical order."""
    return [scheme_row(name) for name in list_schemes()]


def scheme_row(name: str) -> dict[str, Any]:
    """Return name, summary, equation, source, architectures, folds_to, changes and grew_out_of of a scheme.

    Raises SchemeError where one does not say what it changes; one of your own, "module:Class", need not.
    """
    kind = scheme_class(name)
    if kind.changes not in CHANGES and not (is_own(name) and kind.changes is None):
        raise SchemeError(
            f"scheme '{name}' says that it changes {kind.changes!r}, by which the catalogue cannot list it; "
            f"give its class changes: ClassVar[Change] = one of {', '.join(map(repr, CHANGES))}"
        )
    return {
        "name": name,
        "summary": class_summary(kind),
        "equation": kind.equation,
        "source": kind.source,
        "architectures": list(kind.architectures),
        "folds_to": kind.folds_to,
        "changes": kind.changes,
        "grew_out_of": list(kind.grew_out_of),
    }


def class_summary(kind: type[ResidualScheme]) -> str:
    """Return the first line of a scheme's own docstring, "" where it has none."""
    written = inspect.getdoc(kind) or ""
    is_signature = written.startswith(
        f"{kind.__name__}("
    )  # a dataclass writes it where there is none
    return "" if is_signature else written.partition("\n")[0]


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
        raise ConfigError(
            f"scheme '{name}' cannot be imported: {error!r}; modules are looked for in the working directory and on "
            "PYTHONPATH"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, ResidualScheme)):
        raise ConfigError(
            f"scheme '{name}' is not a subclass of deepnet.schemes.base.ResidualScheme"
        )
    return kind
