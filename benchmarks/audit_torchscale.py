"""torchscale's DeepNorm as its user builds it, for `deepnet audit` (in the environment of setup_peers.sh).

cd benchmarks && .venv/bin/deepnet audit audit_torchscale:encoder_decoder --claims deepnorm
cd benchmarks && .venv/bin/deepnet audit audit_torchscale:decoder --claims deepnorm
"""

import torch
from torch import Tensor, nn
from torchscale.architecture.config import DecoderConfig, EncoderDecoderConfig
from torchscale.architecture.decoder import Decoder
from torchscale.architecture.encoder_decoder import EncoderDecoder
from torchscale.component.embedding import PositionalEmbedding, TextEmbedding

VOCABULARY, WIDTH, LAYERS = 1000, 128, 6
SIZES = {"embed_dim": WIDTH, "ffn_embed_dim": 2 * WIDTH, "attention_heads": 4, "layers": LAYERS}


def encoder_decoder() -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(1)
    sizes = {
        f"{stack}_{key}": size for stack in ("encoder", "decoder") for key, size in SIZES.items()
    }
    model = EncoderDecoder(
        EncoderDecoderConfig(vocab_size=VOCABULARY, deepnorm=True, **sizes),
        encoder_embed_tokens=TextEmbedding(VOCABULARY, WIDTH),
        decoder_embed_tokens=TextEmbedding(VOCABULARY, WIDTH),
        encoder_embed_positions=PositionalEmbedding(64, WIDTH),
        decoder_embed_positions=PositionalEmbedding(64, WIDTH),
    )
    return model, (_ids(7), _ids(5))


def decoder() -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(1)
    sizes = {f"decoder_{key}": size for key, size in SIZES.items()}
    model = Decoder(
        DecoderConfig(vocab_size=VOCABULARY, deepnorm=True, **sizes),
        embed_tokens=TextEmbedding(VOCABULARY, WIDTH),
        embed_positions=PositionalEmbedding(64, WIDTH),
    )
    return model, (_ids(7),)


def _ids(length: int) -> Tensor:
    return torch.randint(2, VOCABULARY - 1, (2, length))
