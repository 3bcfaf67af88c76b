"""Marian: post-norm encoder-decoder with fixed sinusoids and no norm after its embeddings."""

from typing import Any

from torch import Tensor
from transformers.models.marian import modeling_marian as stock

from deepnet.anatomy.base import Anatomy, Sited
from deepnet.anatomy.huggingface.bart import decoder_layer, encoder_decoder, encoder_layer


class MarianEncoderLayer(Sited, stock.MarianEncoderLayer):
    """Marian's encoder layer with its additions as modules."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> Tensor:
        """Return [B, T, D] as the stock layer does, each addition a site."""
        return encoder_layer(self, hidden_states, attention_mask, kwargs)


class MarianDecoderLayer(Sited, stock.MarianDecoderLayer):
    """Marian's decoder layer with its additions as modules."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = True,
        **kwargs: Any,
    ) -> Tensor:
        """Return [B, T, D] as the stock layer does, each addition a site."""
        memory = (encoder_hidden_states, encoder_attention_mask)
        return decoder_layer(self, hidden_states, attention_mask, memory, past_key_values, kwargs)


def find(model: Any) -> Anatomy:
    """Return the anatomy of a Marian; raises AdaptError where it has only one of the two stacks."""
    return encoder_decoder(model, MarianEncoderLayer, MarianDecoderLayer, entry_norm=None)
