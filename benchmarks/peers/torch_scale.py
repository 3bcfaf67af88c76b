"""torchscale's EncoderDecoder as Post-LN, which takes two switches besides its default.

`subln=False` and both `normalize_before=False`; with DeepNorm on it does the same operations (its
skip is multiplied by 1.0 otherwise). Its forward drops the source padding, so the two halves are
called one after the other.
"""

from torch import Tensor, nn
from torchscale.architecture.config import EncoderDecoderConfig
from torchscale.architecture.encoder_decoder import EncoderDecoder
from torchscale.component.embedding import TextEmbedding

from workload import DROPOUT, PAD, VOCAB_SIZE, SinusoidalPositions, Size


def torchscale_config(size: Size) -> EncoderDecoderConfig:
    """Post-LN, ReLU, dropout on the branches alone, shared embeddings."""
    return EncoderDecoderConfig(
        encoder_embed_dim=size.d_model,
        encoder_attention_heads=size.num_heads,
        encoder_ffn_embed_dim=size.ffn_dim,
        encoder_layers=size.layers,
        encoder_normalize_before=False,
        decoder_embed_dim=size.d_model,
        decoder_attention_heads=size.num_heads,
        decoder_ffn_embed_dim=size.ffn_dim,
        decoder_layers=size.layers,
        decoder_normalize_before=False,
        activation_fn="relu",
        dropout=DROPOUT,
        attention_dropout=0.0,
        activation_dropout=0.0,
        no_scale_embedding=False,
        subln=False,
        share_all_embeddings=True,
        vocab_size=VOCAB_SIZE,
    )


class TorchScale(nn.Module):
    """Gives torchscale's EncoderDecoder the call of the benchmark."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.model = EncoderDecoder(
            torchscale_config(size),
            encoder_embed_tokens=TextEmbedding(VOCAB_SIZE, size.d_model, padding_idx=PAD),
            encoder_embed_positions=SinusoidalPositions(size.d_model),
            decoder_embed_positions=SinusoidalPositions(size.d_model),
        )

    def forward(self, source: Tensor, source_keep: Tensor, target_in: Tensor) -> Tensor:
        """Logits [B, T, V]."""
        memory = self.model.encoder(source, encoder_padding_mask=~source_keep)
        logits, _ = self.model.decoder(target_in, encoder_out=memory)
        return logits


def build(size: Size) -> nn.Module:
    """The peer at this size."""
    return TorchScale(size)
