"""A recipe: every section of a run, each defined beside its owner, nested in one file."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from deepnet.config import Section, build, override, read_toml
from deepnet.data.batching import BatchConfig
from deepnet.data.cleaning import CleaningConfig
from deepnet.data.sources import PAIR, DataConfig
from deepnet.data.tokenizer import TokenizerConfig
from deepnet.decoding.interface import DecodingConfig
from deepnet.errors import ConfigError
from deepnet.evaluation.tokenization import Tokenization
from deepnet.left_open import as_recorded
from deepnet.pipeline.shipped import hint_at_recipe, list_recipes, shipped_recipe
from deepnet.planning.budget import MemoryConfig
from deepnet.probes.config import ProbeConfig
from deepnet.record import RunFolder
from deepnet.schemes.base import Ends, ResidualScheme, StackContext, StackPlan
from deepnet.schemes.catalogue import load_scheme, scheme_class
from deepnet.training.config import (
    MuonConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainingConfig,
    optimizer_family,
)
from deepnet.training.engine.in_backward import refuse_whole_gradients
from deepnet.training.guard.config import GuardConfig
from deepnet.transformer.ends import EndsConfig, choose_ends, own_rates
from deepnet.transformer.models import STACKS, TransformerConfig, check_defined
from deepnet.transformer.plans import plan_stack

_PAIR_KEYS = {
    "cleaning": ("max_ratio",),
    "tokenizer": ("shared", "target_model"),
    "model": ("source_vocab_size",),
}
_WARMUP = ("warmup_steps", "warmup_init_lr")
_PAIR_SECTIONS = ("validation", "decoding")
"""What has no effect on one text."""


class ValidationConfig(Section):
    """What a validation measures besides the loss."""

    bleu: bool = False
    """Translate valid sentences and score BLEU at every validation."""
    bleu_sentences: Annotated[int, Field(ge=1)] = 500
    """Sentences translated at a validation: the first so many of the valid part."""
    bleu_tokenization: Literal["auto", Tokenization] = "auto"
    """How BLEU splits text, at validations and of the test part; auto: as sacreBLEU does for data.target_language (zh,
    ja-mecab, ko-mecab, else 13a), by characters where a text is written without spaces or the package is missing."""
    beam_size: Annotated[int, Field(ge=1)] = 1
    """Hypotheses per sentence in a validation; 1 is greedy and fast."""


class Recipe(Section):
    """A whole run: text, model, scheme, training, decoding.

    The architecture decides what is learnt: an encoder_decoder translates, a decoder_only predicts the next token of
    one text, an encoder_only the masked tokens of one text.
    """

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
    ends: EndsConfig = EndsConfig()
    """Embeddings and vocabulary: how their rows are held, drawn and trained."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """What turns gradients into updates."""
    schedule: ScheduleConfig = ScheduleConfig()
    """The learning rate at each update."""
    training: TrainingConfig
    """How long to train, how to check on it and what to keep."""
    memory: MemoryConfig = MemoryConfig()
    """What memory a run may take."""
    guard: GuardConfig = GuardConfig()
    """What is done when training is in trouble."""
    probes: ProbeConfig = ProbeConfig()
    """What is measured on the way."""
    validation: ValidationConfig = ValidationConfig()
    """What a validation measures."""
    decoding: DecodingConfig = DecodingConfig()
    """How the finished translator translates the test part."""

    @model_validator(mode="before")
    @classmethod
    def _start_as_the_scheme_does(cls, given: Any) -> Any:
        """Start at the peak learning rate where the scheme's source does and the recipe says nothing of a warm-up."""
        sections = [given.get(name, {}) for name in ("scheme", "schedule", "optimizer")]
        if not all(isinstance(section, Mapping) for section in sections):
            return given
        scheme, schedule, optimizer = sections
        silent = not any(key in schedule for key in _WARMUP)
        if silent and not scheme_class(scheme.get("name", "deepnorm")).warmup:
            return {**given, "schedule": {**schedule, **_at_the_peak(schedule, optimizer)}}
        return given

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        self._check_sides()
        self._check_languages()
        if self.training.keep_best == "bleu" and not self.validation.bleu:
            raise ValueError("training.keep_best = 'bleu' needs validation.bleu = true")
        if self.training.engine == "sharded" and self.probes.every:
            raise ValueError(
                "the probes measure a whole model on one process, and training.engine = 'sharded' has none; "
                "set probes.every = 0"
            )
        refuse_whole_gradients(
            self.training,
            self.optimizer,
            self.guard,
            has_probes=self.probes.every > 0,
            micro_batches=self.batching.micro_batches_per_update,
        )
        if self.model.loops > 1 and self.optimizer.muon and self.optimizer.muon.L_base:
            raise ValueError(
                f"optimizer.muon.L_base counts stored layers, and model.loops = {self.model.loops} runs them more "
                "often; leave one of them out"
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

    def _check_sides(self) -> None:
        """Refuse a text that the architecture cannot learn from, and what has no effect on one text."""
        architecture, pairs = self.model.architecture, self.data.sides == PAIR
        if self.translates and not pairs:
            raise ValueError(
                "model.architecture 'encoder_decoder' learns from sentences with translations, but data is one text; "
                "give two languages or files, or choose 'decoder_only' or 'encoder_only'"
            )
        if pairs and not self.translates:
            raise ValueError(
                f"model.architecture '{architecture}' learns from one text, but data names sentences with "
                "translations; give data.language with a corpus, or data.train_text"
            )
        if not pairs and (given := _for_pairs_only(self)):
            raise ValueError(f"'{given[0]}' has no effect on one text; remove it")

    def _check_languages(self) -> None:
        """Refuse what many directions cannot have."""
        if not self.data.pairs:
            return
        if not self.tokenizer.shared or self.tokenizer.target_model:
            raise ValueError(
                "data.pairs are of many languages, which share one vocabulary; leave out tokenizer.shared and "
                "tokenizer.target_model"
            )
        if self.validation.bleu:
            raise ValueError(
                "validation.bleu is of one direction, but data.pairs names many, which are scored one by one at the "
                "end; set it to false"
            )

    @property
    def translates(self) -> bool:
        """Whether the model learns translations, not the tokens of one text."""
        return self.model.architecture == "encoder_decoder"

    def residual_scheme(self) -> ResidualScheme:
        """Return the scheme with its options; raises ConfigError that names a wrong one."""
        options = dict(self.scheme)
        return load_scheme(str(options.pop("name", "deepnorm")), options)


def _at_the_peak(schedule: Mapping[str, Any], optimizer: Mapping[str, Any]) -> dict[str, float]:
    """Return what makes a schedule start at the peak; inverse_sqrt keeps its steps, from which it then falls."""
    if schedule.get("name", ScheduleConfig().name) != "inverse_sqrt":
        return {"warmup_steps": 0}
    return {"warmup_init_lr": optimizer.get("lr", OptimizerConfig().lr)}


def _for_pairs_only(recipe: Recipe) -> list[str]:
    """Return the keys that were set though they mean something for sentences with translations only."""
    given = recipe.model_dump(exclude_defaults=True)
    named = [
        f"{section}.{key}"
        for section, keys in _PAIR_KEYS.items()
        for key in keys
        if key in given.get(section, {})
    ]
    return named + [f"{name}.{key}" for name in _PAIR_SECTIONS for key in given.get(name, {})]


def load_recipe(recipe: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """Read a recipe, apply `section.key=value` overrides and check it; raises ConfigError that names the key.

    `recipe` is a TOML file, the folder of a run, whose own recipe is taken, or the name of a shipped recipe. A run
    leaves nothing open: it says what was settled, and of what it lacks what was done before there was a choice.
    """
    path = find_recipe(recipe)
    if not path.is_dir():
        return parse_recipe(override(read_toml(path), overrides))
    recorded = _recorded(RunFolder.open(path))
    loaded = parse_recipe(override(_without_silent_muon(as_recorded(Recipe, recorded)), overrides))
    return loaded if "ends" in recorded else with_ends(loaded, own_ends(loaded))


def find_recipe(recipe: str | Path) -> Path:
    """Return the file or run folder at that path, else the shipped recipe of that name; raises ConfigError."""
    path, name = Path(recipe), str(recipe)
    there = RunFolder(path).recipe_path if path.is_dir() else path
    if name in list_recipes() and not there.exists():
        return shipped_recipe(name)
    if not path.exists():
        raise ConfigError(
            f"cannot read the recipe {recipe}: there is no such file or run folder, and no shipped recipe of that "
            f"name{hint_at_recipe(path.stem)}"
        )
    return path


def parse_recipe(data: dict[str, Any]) -> Recipe:
    """Check a nested mapping as a recipe; raises ConfigError with a line per wrong key."""
    recipe = build(Recipe, data)
    _check_ends(recipe)
    return recipe


def planned_ends(recipe: Recipe) -> list[tuple[StackContext, Ends]]:
    """Return the ends that the recipe's scheme itself plans for each stack; raises ConfigError where it cannot."""
    return [(context, plan.ends) for context, plan in planned_stacks(recipe)]


def planned_stacks(recipe: Recipe) -> list[tuple[StackContext, StackPlan]]:
    """Return what the recipe's scheme plans for each stack; raises ConfigError where it cannot."""
    scheme, family = recipe.residual_scheme(), optimizer_family(recipe.optimizer.name)
    check_defined(scheme, recipe.model.architecture)
    layers = {"encoder": recipe.model.encoder_layers, "decoder": recipe.model.decoder_layers}
    names = [name for name in STACKS if layers[name]]
    return [plan_stack(scheme, recipe.model, name, optimizer_family=family) for name in names]


def own_ends(recipe: Recipe) -> EndsConfig:
    """Return what says in numbers that the ends learn as under the recipe's scheme itself."""
    planned = [ends for _, ends in planned_ends(recipe)]
    return own_rates(planned, tied=recipe.model.tie_embeddings != "none")


def with_ends(recipe: Recipe, ends: EndsConfig) -> Recipe:
    """Return the recipe with `ends` where it says nothing itself; the vocabulary's keys follow what it says."""
    said = recipe.ends.model_dump(exclude_none=True)
    following = {key.replace("embedding", "vocabulary") for key in said}
    silent = {key: value for key, value in ends.model_dump().items() if key not in following}
    return recipe.model_copy(update={"ends": EndsConfig(**{**silent, **said})})


def _check_ends(recipe: Recipe) -> None:
    """Raise ConfigError where [ends] contradicts the scheme, or has no effect."""
    recipe.residual_scheme()
    if recipe.ends != EndsConfig():
        for context, ends in planned_ends(recipe):
            choose_ends(ends, recipe.ends, context)


def _recorded(run: RunFolder) -> dict[str, Any]:
    recorded = run.read_recipe().get("recipe")
    if isinstance(recorded, dict) and all(isinstance(value, dict) for value in recorded.values()):
        return recorded
    raise ConfigError(
        f"{run.recipe_path} is damaged: 'recipe' must be an object of sections, each of them an object; "
        "put back a copy of the file"
    )


def _without_silent_muon(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded recipe without an optimizer.muon of defaults: nobody may have asked for it.

    Otherwise the run would be a recipe for Muon alone, as other optimisers refuse that section.
    """
    optimizer = recorded.get("optimizer", {})
    if optimizer.get("muon") != as_recorded(MuonConfig, {}):
        return dict(recorded)
    others = {key: value for key, value in optimizer.items() if key != "muon"}
    return {**recorded, "optimizer": others}
