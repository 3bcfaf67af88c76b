"""What the loop is told about a model at each validation: the loss, of one text perplexity, where asked for BLEU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from torch import nn

from deepnet.data.prepare import PreparedData
from deepnet.decoding.interface import DecodingConfig
from deepnet.decoding.translate import Translator, translate
from deepnet.evaluation.perplexity import perplexity
from deepnet.evaluation.scores import corpus_scores
from deepnet.pipeline.preparing import held_out_batches
from deepnet.pipeline.recipe import Recipe
from deepnet.training.engine.precision import Precision
from deepnet.training.engine.ranks import Ranks
from deepnet.training.loss import SummedLoss, held_out_loss, total_loss
from deepnet.training.validation import Validation, num_shares
from deepnet.transformer.models import Transformer


@dataclass(frozen=True)
class Share:
    """What one rank found on every so-many-th batch and sentence of the valid part."""

    loss: SummedLoss
    translations: Sequence[str]
    """Of its sentences; empty where BLEU is not asked for."""


class HeldOut(Validation):
    """The valid part, dealt out to the ranks: "loss" (nats per token) and what goes with it.

    `tokenization` is BLEU's; unset, the script of the references decides.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: PreparedData,
        *,
        ranks: Ranks,
        precision: Precision,
        tokenization: str | None = None,
    ) -> None:
        shares = num_shares(recipe.training, ranks)
        self._mine = slice(ranks.rank % shares, None, shares)
        self._batches = held_out_batches(recipe, data, "valid")[self._mine]
        self._tokenizers = data.tokenizers
        self._recipe, self._tokenization = recipe, tokenization
        texts = data.lines("valid") if self._gives_bleu else ()
        self._texts = [side[: recipe.validation.bleu_sentences] for side in texts]
        self._device, self._precision = ranks.device, precision

    def measure(self, model: nn.Module, step: int) -> Share:
        """Return the loss of this rank's batches and the translations of its sentences, in the run's precision."""
        loss = held_out_loss(model, self._batches, device=self._device, precision=self._precision)
        return Share(loss, self._translations(model) if self._gives_bleu else ())

    def combine(self, found: Sequence[Share]) -> Mapping[str, float]:
        """Return the figures of the whole part."""
        figures = {"loss": total_loss(share.loss for share in found).per_token()}
        if not self._recipe.translates:
            figures["perplexity"] = perplexity(figures["loss"])
        if self._gives_bleu:
            dealt = chain.from_iterable(zip_longest(*(share.translations for share in found)))
            translated = [line for line in dealt if line is not None]
            scores = corpus_scores(translated, self._texts[1], tokenization=self._tokenization)
            figures["bleu"] = scores["bleu"]
        return figures

    @property
    def _gives_bleu(self) -> bool:
        return self._recipe.translates and self._recipe.validation.bleu

    def _translations(self, model: nn.Module) -> list[str]:
        assert isinstance(model, Transformer)
        translator = Translator(model, self._tokenizers, autocast=self._precision.autocast)
        return list(
            translate(translator, self._texts[0][self._mine], config=greedier(self._recipe))
        )


def greedier(recipe: Recipe) -> DecodingConfig:
    """Return the recipe's decoding with the beam of a validation."""
    return DecodingConfig(
        beam_size=recipe.validation.beam_size,
        length_penalty=recipe.decoding.length_penalty,
        max_length_ratio=recipe.decoding.max_length_ratio,
        max_length_constant=recipe.decoding.max_length_constant,
        max_tokens=recipe.decoding.max_tokens,
    )
