"""A recipe's text as prepared data, and the model that fits it."""

from collections.abc import Callable
from pathlib import Path

import torch

from deepnet.config import build
from deepnet.data.corpora import CACHE as CACHE
from deepnet.data.prepare import PreparedData, prepare
from deepnet.data.tokenizer import Tokenizers
from deepnet.pipeline.recipe import Recipe
from deepnet.training.config import optimizer_family
from deepnet.transformer.models import Transformer, TransformerConfig

Report = Callable[[str], None]
"""Takes each message for the user as it comes."""


def prepare_data(
    recipe: Recipe, *, cache: Path = CACHE, report: Report | None = None
) -> PreparedData:
    """Return the recipe's text as ids, from `cache` where it was prepared before."""
    return prepare(
        recipe.data,
        cleaning=recipe.cleaning,
        tokenizer=recipe.tokenizer,
        cache_dir=cache,
        report=report,
    )


def build_model(recipe: Recipe, tokenizers: Tokenizers) -> Transformer:
    """Return the recipe's model for those vocabularies, drawn from the recipe's seed."""
    torch.manual_seed(recipe.training.seed)
    return Transformer(
        sized_model(recipe.model, tokenizers),
        recipe.residual_scheme(),
        optimizer_family=optimizer_family(recipe.optimizer.name),
    )


def sized_model(config: TransformerConfig, tokenizers: Tokenizers) -> TransformerConfig:
    """Return the model's shape with the vocabularies of the tokenizers."""
    source = 0 if tokenizers.shared else tokenizers.source.vocab_size
    sizes = {"vocab_size": tokenizers.target.vocab_size, "source_vocab_size": source}
    return build(TransformerConfig, {**config.model_dump(), **sizes}, where="model")
