"""The version of the package; docs/compatibility.md says what its digits promise."""

__version__ = "0.1.0"
