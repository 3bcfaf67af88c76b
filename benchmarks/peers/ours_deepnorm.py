"""Ours under DeepNorm."""

from torch import nn

from peers.ours import PAD, build_ours
from workload import Size

__all__ = ["PAD", "build"]


def build(size: Size) -> nn.Module:
    """Ours at this size."""
    return build_ours(size, "deepnorm")
