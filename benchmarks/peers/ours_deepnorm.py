"""Ours under DeepNorm."""

from torch import nn
from workload import Size

from peers.ours import build_ours


def build(size: Size) -> nn.Module:
    """Ours at this size."""
    return build_ours(size, "deepnorm")
