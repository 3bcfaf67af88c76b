"""Train, diagnose, adopt and deploy Transformers of any depth."""

from deepnet.version import __version__

__all__ = ["__version__"]
