"""What every model of the training benchmark is given: its size, its batch, its positions."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

VOCAB_SIZE = 8000
"""How wide everyone's softmax is. The peers' has padding as its last id; ours leaves padding out of
the softmax, so that it has one id more: with 8,000 ids its softmax would be 7,999 wide, and with
8,001 the peers' would be, both of which cost time in unaligned products."""
PAD = VOCAB_SIZE - 1
MAX_POSITIONS = 64
DROPOUT = 0.1
"""On the embedding and on every branch; 0 inside attention and on the activation, for everyone."""


@dataclass(frozen=True)
class Size:
    """One model size and the batch it is trained on."""

    name: str
    layers: int
    d_model: int
    ffn_dim: int
    num_heads: int
    sentences: int
    length: int = 32


SIZES = {
    size.name: size
    for size in (
        Size("6L-6L-d512", 6, 512, 2048, 8, sentences=32),
        Size("100L-100L-d64", 100, 64, 128, 2, sentences=16),
        # for a card of 80 GB, with as many tokens as leave room for the most wasteful peer
        Size("6L-6L-d512-256x64", 6, 512, 2048, 8, sentences=256, length=64),
        Size("18L-18L-d512-256x64", 18, 512, 2048, 8, sentences=256, length=64),
        Size("100L-100L-d512-64x64", 100, 512, 2048, 8, sentences=64, length=64),
        Size("100L-100L-d1024-24x64", 100, 1024, 4096, 16, sentences=24, length=64),
        # to run every line, not to measure
        Size("2L-2L-d32-4x8", 2, 32, 64, 2, sentences=4, length=8),
        Size("4L-4L-d32-4x8", 4, 32, 64, 2, sentences=4, length=8),
    )
}


@dataclass(frozen=True)
class Batch:
    """One fixed batch, padded with `pad`; `num_tokens` counts both sides without padding."""

    source: Tensor
    source_keep: Tensor
    target_in: Tensor
    target_out: Tensor
    pad: int
    num_target_tokens: int
    num_tokens: int

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""
        moved = {name: x.to(device) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **moved)


def make_batch(size: Size, pad: int) -> Batch:
    """Random ids; lengths from three quarters to the whole, as in batches of similar length."""
    generator = torch.Generator().manual_seed(1)
    shape = (size.sentences, size.length)
    source, target = (torch.randint(2, PAD, shape, generator=generator) for _ in range(2))
    shortest = 3 * size.length // 4
    source_lengths = torch.randint(shortest, size.length + 1, shape[:1], generator=generator)
    target_lengths = torch.randint(shortest, size.length + 1, shape[:1], generator=generator)
    source_lengths[0] = target_lengths[0] = size.length
    source_keep = torch.arange(size.length) < source_lengths[:, None]
    target_keep = torch.arange(size.length) < target_lengths[:, None]
    target_out = target.masked_fill(~target_keep, pad)
    target_in = torch.cat([torch.full((size.sentences, 1), pad), target_out[:, :-1]], dim=1)
    num_target_tokens = int(target_keep.sum())
    return Batch(
        source=source.masked_fill(~source_keep, pad),
        source_keep=source_keep,
        target_in=target_in,
        target_out=target_out,
        pad=pad,
        num_target_tokens=num_target_tokens,
        num_tokens=num_target_tokens + int(source_keep.sum()),
    )


def model_flops(size: Size, source_lengths: Tensor, target_lengths: Tensor) -> int:
    """Floating-point operations of both passes over sentences of these lengths [B] that the model itself asks for.

    As in PaLM (arXiv 2204.02311, appendix B): 6 per weight of a matrix and token that it maps, 12 per
    number in a query and pair of query and key, hidden pairs included; nothing for what else is
    computed, or computed again.
    """
    attention, ffn = 4 * size.d_model**2, 2 * size.d_model * size.ffn_dim
    num_source, num_target = int(source_lengths.sum()), int(target_lengths.sum())
    mapped = size.layers * (
        num_source * (attention + ffn + attention // 2)  # the decoder maps them to keys and values
        + num_target * (attention + attention // 2 + ffn)
    )
    pairs = source_lengths**2 + target_lengths**2 + source_lengths * target_lengths
    vocabulary = num_target * size.d_model * VOCAB_SIZE
    return 6 * (mapped + vocabulary) + 12 * size.layers * size.d_model * int(pairs.sum())


class SinusoidalPositions(nn.Module):
    """A fixed table [1, T, D] for the peers that bring no sinusoidal positions of their own."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        rates = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        angles = torch.arange(MAX_POSITIONS)[:, None] * rates
        table = torch.cat([angles.sin(), angles.cos()], dim=1)
        self.register_buffer("table", table[None], persistent=False)

    def forward(
        self, tokens: Tensor, positions: None = None, incremental_state: None = None
    ) -> Tensor:
        """The rows of the table for `tokens` [B, T]; the other two arguments are torchscale's."""
        return self.table[:, : tokens.shape[1]]
