"""A recipe: every section of a run, each defined beside its owner, nested in one file."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from deepnet.config import Section, build, override, read_toml
from deepnet.data.batching import BatchConfig
from deepnet.data.cleaning import CleaningConfig
from deepnet.data.sources import DataConfig
from deepnet.data.tokenizer import TokenizerConfig
from deepnet.decoding.interface import DecodingConfig
from deepnet.record import RunFolder
from deepnet.schemes.base import ResidualScheme
from deepnet.schemes.catalogue import load_scheme
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from deepnet.transformer.models import TransformerConfig


class ValidationConfig(Section):
    """What a validation measures besides the loss."""

    bleu: bool = False
    """Translate valid sentences and score BLEU at every validation."""
    bleu_sentences: Annotated[int, Field(ge=1)] = 500
    """Sentences translated at a validation: the first so many of the valid part."""
    beam_size: Annotated[int, Field(ge=1)] = 1
    """Hypotheses per sentence in a validation; 1 is greedy and fast."""


class Recipe(Section):
    """A whole run: text, model, scheme, training, decoding."""

    data: DataConfig
    """The text."""
    cleaning: CleaningConfig = CleaningConfig()
    """Which pairs of it are used."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """How text becomes ids."""
    batching: BatchConfig = BatchConfig()
    """How sentences form micro-batches and updates."""
    model: TransformerConfig = TransformerConfig()
    """The shape of the model."""
    scheme: dict[str, Any] = Field(default_factory=lambda: {"name": "deepnorm"})
    """The residual scheme: its name, and its own options beside it."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """What turns gradients into updates."""
    schedule: ScheduleConfig = ScheduleConfig()
    """The learning rate at each update."""
    training: TrainingConfig
    """How long to train, how to check on it and what to keep."""
    validation: ValidationConfig = ValidationConfig()
    """What a validation measures."""
    decoding: DecodingConfig = DecodingConfig()
    """How the finished model translates the test part."""

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        if self.training.keep_best == "bleu" and not self.validation.bleu:
            raise ValueError("training.keep_best = 'bleu' needs validation.bleu = true")
        if self.model.architecture != "encoder_decoder":
            raise ValueError(
                f"model.architecture is '{self.model.architecture}', but a recipe trains a translator, "
                "which is an encoder_decoder"
            )
        one_vocabulary = self.tokenizer.shared and not self.tokenizer.target_model
        if self.model.tie_embeddings == "all" and not one_vocabulary:
            raise ValueError(
                "two vocabularies (tokenizer.shared = false, or target_model) cannot share rows; "
                "set model.tie_embeddings to 'decoder' or 'none'"
            )
        longest = self.data.max_sentence_tokens
        if longest > self.batching.max_tokens:
            raise ValueError(
                f"data.max_sentence_tokens is {longest}, more than one micro-batch holds "
                f"(batching.max_tokens {self.batching.max_tokens}); lower the first or raise the second"
            )
        if self.model.positions == "learned" and longest > self.model.max_positions:
            raise ValueError(
                f"data.max_sentence_tokens is {longest}, but the model has learned positions for "
                f"{self.model.max_positions} only (model.max_positions)"
            )
        return self

    def residual_scheme(self) -> ResidualScheme:
        """Return the scheme with its options; raises ConfigError that names a wrong one."""
        options = dict(self.scheme)
        return load_scheme(options.pop("name", "deepnorm"), options)


def load_recipe(path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe, apply `section.key=value` overrides and check it; raises ConfigError that names the key.

    `path` is a TOML file, or the folder of a run, whose own recipe is taken.
    """
    data = _recorded(Path(path)) if Path(path).is_dir() else read_toml(path)
    return parse_recipe(override(data, overrides))


def parse_recipe(data: dict[str, Any]) -> Recipe:
    """Check a nested mapping as a recipe; raises ConfigError with a line per wrong key."""
    recipe = build(Recipe, data)
    recipe.residual_scheme()
    return recipe


def _recorded(run: Path) -> dict[str, Any]:
    """Return the recipe of a run folder, without what has its default: a key that is there counts as asked for."""
    return _given(Recipe, RunFolder.open(run).read_recipe().get("recipe", {}))


def _given(kind: type[Section], data: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, value in data.items():
        field = kind.model_fields.get(name)
        default = field.default if field else None
        section = field.annotation if field else None
        if isinstance(section, type) and issubclass(section, Section):
            value, default = _given(section, value), {}
        if not field or value != default:
            given[name] = value
    return given
