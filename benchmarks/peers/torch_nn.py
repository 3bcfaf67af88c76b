"""torch.nn.Transformer with shared embeddings and sinusoidal positions around it."""

import math

from torch import Tensor, nn
from torch.nn import functional as F

from workload import DROPOUT, PAD, VOCAB_SIZE, SinusoidalPositions, Size


class TorchTransformer(nn.Module):
    """Post-LN, no final norms, dropout on the branches alone."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.scale = math.sqrt(size.d_model)
        self.embedding = nn.Embedding(VOCAB_SIZE, size.d_model, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=size.d_model**-0.5)
        self.positions = SinusoidalPositions(size.d_model)
        self.transformer = nn.Transformer(
            size.d_model,
            size.num_heads,
            size.layers,
            size.layers,
            size.ffn_dim,
            dropout=DROPOUT,
            batch_first=True,
        )
        self.transformer.encoder.norm = self.transformer.decoder.norm = None
        for layer in [*self.transformer.encoder.layers, *self.transformer.decoder.layers]:
            layer.self_attn.dropout = 0.0
            layer.dropout.p = 0.0  # the one on the activation
        for layer in self.transformer.decoder.layers:
            layer.multihead_attn.dropout = 0.0

    def embed(self, tokens: Tensor) -> Tensor:
        """Scaled embedding plus position, dropped out: [B, T] to [B, T, D]."""
        embedded = self.embedding(tokens) * self.scale + self.positions(tokens)
        return F.dropout(embedded, DROPOUT, self.training)

    def forward(self, source: Tensor, source_keep: Tensor, target_in: Tensor) -> Tensor:
        """Logits [B, T, V]."""
        causal = nn.Transformer.generate_square_subsequent_mask(
            target_in.shape[1], device=target_in.device
        )
        hidden = self.transformer(
            self.embed(source),
            self.embed(target_in),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=~source_keep,
            memory_key_padding_mask=~source_keep,
        )
        return F.linear(hidden, self.embedding.weight)


def build(size: Size) -> nn.Module:
    """The peer at this size."""
    return TorchTransformer(size)
