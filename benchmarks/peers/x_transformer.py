"""x-transformers' encoder and decoder as Post-LN, with fused attention.

It differs in what it always does: no biases in attention, none in its LayerNorm, one learned scale
on its sinusoidal positions. The vocabulary layer is a Linear that shares the embedding's weight
(its own `tie_embedding` would multiply all logits by a constant, which costs it time).
"""

from torch import Tensor, nn
from x_transformers.x_transformers import (
    AttentionLayers,
    Decoder,
    Encoder,
    TokenEmbedding,
    TransformerWrapper,
)

from workload import DROPOUT, MAX_POSITIONS, PAD, VOCAB_SIZE, Size

__all__ = ["PAD", "build"]


class XTransformer(nn.Module):
    """Encoder and decoder over one shared embedding."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        embedding = TokenEmbedding(size.d_model, VOCAB_SIZE)
        vocabulary = nn.Linear(size.d_model, VOCAB_SIZE, bias=False)
        vocabulary.weight = embedding.emb.weight
        self.encoder = wrap(stack(size, decoder=False), embedding, vocabulary=None)
        self.decoder = wrap(stack(size, decoder=True), embedding, vocabulary=vocabulary)
        nn.init.normal_(embedding.emb.weight, std=size.d_model**-0.5)

    def forward(self, source: Tensor, source_keep: Tensor, target_in: Tensor) -> Tensor:
        """Logits [B, T, V]."""
        memory = self.encoder(source, mask=source_keep, return_embeddings=True)
        return self.decoder(target_in, context=memory, context_mask=source_keep)


def stack(size: Size, *, decoder: bool) -> AttentionLayers:
    """Post-LN layers with ReLU and dropout on the branches alone."""
    make = Decoder if decoder else Encoder
    return make(
        dim=size.d_model,
        depth=size.layers,
        heads=size.num_heads,
        cross_attend=decoder,
        pre_norm=False,
        attn_dim_head=size.d_model // size.num_heads,
        attn_flash=True,
        attn_sublayer_dropout=DROPOUT,
        cross_attn_sublayer_dropout=DROPOUT,
        ff_mult=size.ffn_dim / size.d_model,
        ff_custom_activation=nn.ReLU(),
        ff_sublayer_dropout=DROPOUT,
    )


def wrap(
    layers: AttentionLayers, embedding: TokenEmbedding, *, vocabulary: nn.Linear | None
) -> TransformerWrapper:
    """Embedding, positions and vocabulary layer around the stack."""
    return TransformerWrapper(
        num_tokens=VOCAB_SIZE,
        max_seq_len=MAX_POSITIONS,
        attn_layers=layers,
        token_emb=embedding,
        emb_dropout=DROPOUT,
        scaled_sinu_pos_emb=True,
        return_only_embed=vocabulary is None,
        to_logits=vocabulary,
    )


def build(size: Size) -> nn.Module:
    """The peer at this size."""
    return XTransformer(size)
