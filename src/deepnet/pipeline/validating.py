"""What the loop is told about a model at each validation: the loss, of one text perplexity, where asked for BLEU."""

from collections.abc import Callable

import torch
from torch import nn

from deepnet.data.prepare import PreparedData
from deepnet.decoding.interface import DecodingConfig
from deepnet.decoding.translate import Translator, translate
from deepnet.evaluation.perplexity import perplexity
from deepnet.evaluation.scores import corpus_scores
from deepnet.pipeline.preparing import held_out_batches
from deepnet.pipeline.recipe import Recipe
from deepnet.training.engine.precision import Precision
from deepnet.training.loss import validation_loss
from deepnet.transformer.models import Transformer


def make_validation(
    recipe: Recipe,
    data: PreparedData,
    *,
    device: torch.device,
    precision: Precision,
    tokenization: str | None = None,
) -> Callable[[nn.Module, int], dict[str, float]]:
    """Return the function (model, step) -> figures on the valid part: "loss" (nats per token) and what goes with it.

    `tokenization` is BLEU's; unset, the script of the references decides.
    """
    batches = held_out_batches(recipe, data, "valid")
    texts = [side[: recipe.validation.bleu_sentences] for side in data.lines("valid")]

    def validate(model: nn.Module, step: int) -> dict[str, float]:
        loss = validation_loss(model, batches, device=device, precision=precision)
        if not recipe.translates:
            return {"loss": loss, "perplexity": perplexity(loss)}
        if not recipe.validation.bleu:
            return {"loss": loss}
        assert isinstance(model, Transformer)
        sources, references = texts
        found = translate(Translator(model, data.tokenizers), sources, config=greedier(recipe))
        scores = corpus_scores(list(found), references, tokenization=tokenization)
        return {"loss": loss, "bleu": scores["bleu"]}

    return validate


def greedier(recipe: Recipe) -> DecodingConfig:
    """Return the recipe's decoding with the beam of a validation."""
    return DecodingConfig(
        beam_size=recipe.validation.beam_size,
        length_penalty=recipe.decoding.length_penalty,
        max_length_ratio=recipe.decoding.max_length_ratio,
        max_length_constant=recipe.decoding.max_length_constant,
        max_tokens=recipe.decoding.max_tokens,
    )
