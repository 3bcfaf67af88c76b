"""The one family of exceptions: every error a user can cause says what, what was expected, and what to do.

DeepNetError
    ConfigError       a recipe, option or argument is wrong (the command exits with 2)
    DataError         text, corpus or prepared data cannot be used
    CheckpointError   a checkpoint or bundle cannot be read or does not belong here
    AdaptError        a scheme cannot live on that model
    DivergenceError   training produced a loss or gradient that is not finite
    PlanError         what a model takes cannot be told before it runs
    ExportError       a model cannot be written in the wanted format
    SchemeError       a scheme does not hold what is claimed of it
"""

import difflib
from collections.abc import Iterable


class DeepNetError(Exception):
    """Anything deepnet refuses to do, with the reason."""


class ConfigError(DeepNetError):
    """A recipe, option or argument is wrong."""


class DataError(DeepNetError):
    """Text, a corpus or prepared data cannot be used."""


class CheckpointError(DeepNetError):
    """A checkpoint or bundle cannot be read, or does not belong here."""


class AdaptError(DeepNetError):
    """A scheme cannot live on that model."""


class DivergenceError(DeepNetError):
    """Training produced a loss or gradient that is not finite."""


class PlanError(DeepNetError):
    """What a model takes cannot be told before it runs."""


class ExportError(DeepNetError):
    """A model cannot be written in the wanted format."""


class SchemeError(DeepNetError):
    """A scheme does not hold what is claimed of it."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the known name nearest to `name`, or "" when none is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""
