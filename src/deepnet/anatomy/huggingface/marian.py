"""Marian: post-norm encoder-decoder with fixed sinusoids and no norm after its embeddings."""

from typing import Any

from transformers.models.marian import modeling_marian as stock

from deepnet.anatomy.base import Anatomy
from deepnet.anatomy.huggingface.bart import SitedDecoderLayer, SitedEncoderLayer, encoder_decoder


class MarianEncoderLayer(SitedEncoderLayer, stock.MarianEncoderLayer):
    """Marian's encoder layer with its additions as modules."""


class MarianDecoderLayer(SitedDecoderLayer, stock.MarianDecoderLayer):
    """Marian's decoder layer with its additions as modules."""


def find(model: Any) -> Anatomy:
    """Return the anatomy of a Marian; raises AdaptError where it has only one of the two stacks."""
    return encoder_decoder(model, MarianEncoderLayer, MarianDecoderLayer, entry_norm=None)
