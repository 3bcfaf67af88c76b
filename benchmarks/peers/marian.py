"""Hugging Face MarianMTModel: Post-LN, shared embeddings, its own sinusoidal positions."""

from torch import Tensor, nn
from transformers.models.marian.configuration_marian import MarianConfig
from transformers.models.marian.modeling_marian import MarianMTModel

from workload import DROPOUT, MAX_POSITIONS, PAD, VOCAB_SIZE, Size


def marian_config(size: Size) -> MarianConfig:
    """Attention and activation dropout are 0, which is Marian's own default."""
    return MarianConfig(
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=MAX_POSITIONS,
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        encoder_ffn_dim=size.ffn_dim,
        decoder_ffn_dim=size.ffn_dim,
        encoder_attention_heads=size.num_heads,
        decoder_attention_heads=size.num_heads,
        d_model=size.d_model,
        activation_function="relu",
        dropout=DROPOUT,
        attention_dropout=0.0,
        activation_dropout=0.0,
        scale_embedding=True,
        use_cache=False,
        pad_token_id=PAD,
        decoder_start_token_id=PAD,
    )


class Marian(nn.Module):
    """Gives MarianMTModel the call of the benchmark."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.model = MarianMTModel(marian_config(size))

    def forward(self, source: Tensor, source_keep: Tensor, target_in: Tensor) -> Tensor:
        """Logits [B, T, V]."""
        return self.model(
            input_ids=source, attention_mask=source_keep, decoder_input_ids=target_in
        ).logits


def build(size: Size) -> nn.Module:
    """The peer at this size."""
    return Marian(size)
