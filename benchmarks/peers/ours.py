"""Our Transformer under a scheme, with nothing around it."""

from torch import nn

from deepnet.schemes.catalogue import load_scheme
from deepnet.transformer.models import Transformer, TransformerConfig
from workload import DROPOUT, MAX_POSITIONS, VOCAB_SIZE, Size

PAD = VOCAB_SIZE


def build_ours(size: Size, scheme: str) -> nn.Module:
    """Shared embeddings, sinusoidal positions, ReLU, dropout on the branches alone."""
    config = TransformerConfig(
        architecture="encoder_decoder",
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        d_model=size.d_model,
        ffn_dim=size.ffn_dim,
        num_heads=size.num_heads,
        vocab_size=PAD + 1,
        tie_embeddings="all",
        positions="sinusoidal",
        max_positions=MAX_POSITIONS,
        activation="relu",
        norm="layer_norm",
        dropout=DROPOUT,
        attention_dropout=0.0,
        activation_dropout=0.0,
    )
    return Transformer(config, load_scheme(scheme, {}), optimizer_family="adam")
