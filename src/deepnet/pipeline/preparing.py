"""A recipe's text as prepared data, the batches its objective makes of it, and the model that fits it."""

from pathlib import Path

import torch

from deepnet.config import build
from deepnet.data.corpora import CACHE as CACHE
from deepnet.data.dataset import Rows
from deepnet.data.loader import Batch, UpdateLoader, validation_batches
from deepnet.data.mixture import MixedText
from deepnet.data.objectives import MaskedTokens, NextToken, Objective, Translation
from deepnet.data.prepare import PreparedData, prepare
from deepnet.data.prepare import Report as Report
from deepnet.data.tokenizer import MASK_PIECE, Tokenizers
from deepnet.errors import ConfigError
from deepnet.pipeline.recipe import Recipe
from deepnet.training.config import optimizer_family
from deepnet.transformer.models import Transformer, TransformerConfig

HELD_OUT_SEED = 0
"""Decides what is masked in valid and test."""


def prepare_data(
    recipe: Recipe,
    *,
    cache: Path = CACHE,
    report: Report | None = None,
    repeats: PreparedData | None = None,
    processes: int | None = None,
) -> PreparedData:
    """Return the recipe's text as ids, from `cache` where it was prepared before; the rest as in `prepare`."""
    return prepare(
        recipe.data,
        cleaning=recipe.cleaning,
        tokenizer=recipe.tokenizer,
        cache_dir=cache,
        report=report,
        repeats=repeats,
        processes=processes,
    )


def make_loader(
    recipe: Recipe, data: PreparedData, *, rank: int = 0, world_size: int = 1
) -> UpdateLoader:
    """Return the updates of the recipe's training part, as one of `world_size` processes computes them."""
    text = data.dataset("train")
    if isinstance(text, MixedText):
        text = MixedText(text.drawn, temperature=recipe.data.sampling_temperature)
    return UpdateLoader(
        text,
        recipe.batching,
        objective=make_objective(recipe, data.tokenizers, seed=recipe.training.seed),
        seed=recipe.training.seed,
        rank=rank,
        world_size=world_size,
    )


def mixture_table(text: Rows) -> list[str]:
    """Return what an epoch has of each of many directions, a line each under a heading; nothing of one direction."""
    if not isinstance(text, MixedText):
        return []
    drawn = text.of_epoch(seed=0, epoch=0).drawn
    width = max(len("direction"), *(len(str(one.text.direction)) for one in drawn))
    rows = [
        f"{one.text.direction!s:<{width}}  {len(one.text.pair):>11,}  {one.count / len(text):>6.2%}  "
        f"{one.count / len(one.text.pair):>8.3g}"
        for one in drawn
    ]
    head = f"{'direction':<{width}}  {'pairs':>11}  {'share':>6}  {'an epoch':>8}"
    what = (
        f"an epoch: {len(text):,} pairs drawn at data.sampling_temperature = {text.temperature:g}"
    )
    return [what, head, *rows]


def held_out_batches(recipe: Recipe, data: PreparedData, part: str) -> list[Batch]:
    """Return "valid" or "test" as the model sees it: always the same, whatever the seed of the run."""
    return validation_batches(
        data.dataset(part),
        objective=make_objective(recipe, data.tokenizers, seed=HELD_OUT_SEED),
        max_tokens=recipe.batching.max_tokens,
    )


def make_objective(recipe: Recipe, tokenizers: Tokenizers, *, seed: int) -> Objective:
    """Return what a model of the recipe's architecture learns; `seed` decides what is masked, if anything.

    Raises ConfigError where the tokenizer lacks what the objective needs.
    """
    if recipe.translates:
        return Translation()
    if recipe.model.architecture == "decoder_only":
        return NextToken()
    mask = tokenizers.target.mask
    if mask is None:
        raise ConfigError(
            f"an encoder_only model learns masked tokens, but the SentencePiece model {recipe.tokenizer.source_model} "
            f"has no piece '{MASK_PIECE}'; leave out tokenizer.source_model, or train it with that control symbol"
        )
    return MaskedTokens(mask=mask, seed=seed)


def build_model(recipe: Recipe, tokenizers: Tokenizers) -> Transformer:
    """Return the recipe's model for those vocabularies, drawn from the recipe's seed."""
    torch.manual_seed(recipe.training.seed)
    return Transformer(
        sized_model(recipe.model, tokenizers),
        recipe.residual_scheme(),
        ends=recipe.ends,
        optimizer_family=optimizer_family(recipe.optimizer.name),
    )


def sized_model(config: TransformerConfig, tokenizers: Tokenizers) -> TransformerConfig:
    """Return the model's shape with the vocabularies of the tokenizers."""
    source = 0 if tokenizers.shared else tokenizers.source.vocab_size
    sizes = {"vocab_size": tokenizers.target.vocab_size, "source_vocab_size": source}
    return build(TransformerConfig, {**config.model_dump(), **sizes}, where="model")
