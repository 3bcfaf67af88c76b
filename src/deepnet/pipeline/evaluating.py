"""How good a finished model is: on a part of its own data, or its translations on any pair of files."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from deepnet.bundle import Bundle, load_bundle
from deepnet.data.prepare import PreparedData
from deepnet.data.text import read_pairs
from deepnet.decoding.translate import Translator
from deepnet.errors import ConfigError
from deepnet.evaluation.scores import tokenized_bleu
from deepnet.evaluation.tokenization import check_tokenization, choose_tokenization
from deepnet.pipeline.devices import choose_device
from deepnet.pipeline.direction_scores import score_directions
from deepnet.pipeline.keeping import held_out_text
from deepnet.pipeline.opening import (
    bundle_path,
    bundle_precision,
    decoding_settings,
    open_bundles,
    recorded_recipe,
)
from deepnet.pipeline.preparing import CACHE, Report, held_out_batches
from deepnet.pipeline.timed_scores import timed_perplexity, timed_scores
from deepnet.record import RunFolder
from deepnet.schemes.catalogue import TrustCode
from deepnet.training.config import PrecisionName


def evaluate(
    models: Sequence[str | Path],
    *,
    overrides: Iterable[str] = (),
    part: str = "test",
    files: tuple[str | Path, str | Path] | None = None,
    to: str = "",
    tokenized: bool = False,
    bleu_tokenization: str | None = None,
    device: str = "auto",
    precision: PrecisionName = "auto",
    cache: Path = CACHE,
    trust_code: TrustCode = (),
    report: Report | None = None,
) -> dict[str, Any]:
    """Score a model; return {"bleu", "chrf", "signature": {...}, "sentences", "seconds"}.

    The text is `part` ("valid" or "test") of the first run's data, or the source and reference `files`. A run of many
    directions is scored in each, as `score_directions` has it; with files `to` says into which language. `tokenized`
    adds "tokenized_bleu" with its signature, for text that is tokenised already. `bleu_tokenization` is how BLEU splits
    text; unset, as the first run did; `precision` is by default that of the first run.
    `trust_code` names the classes that the models may bring. Of a run that learnt
    one text it is what `timed_perplexity` returns, and nothing but the part can be chosen. Raises ConfigError where
    BLEU needs a package that is not installed, or the device has not the precision.
    """
    run = _one_text(models, trust_code) if files is None else None
    if run:
        if tokenized or list(overrides):
            raise ConfigError(
                f"{run.path} predicts one text and translates nothing: leave out tokenised BLEU and decoding settings"
            )
        return _perplexity(run, part, choose_device(device), precision, cache, trust_code, report)
    bundles = open_bundles(models, device=choose_device(device), trust_code=trust_code)
    autocast = bundle_precision(bundles[0], precision).autocast
    config = decoding_settings(bundles[0], overrides)
    own = None if files else _own_part(models[0], part, cache, trust_code, report)
    if own and own.directions:
        if tokenized or to:
            raise ConfigError(
                f"{models[0]} is scored in all its directions: leave out tokenised BLEU and the language, or give files"
            )
        if bleu_tokenization:
            check_tokenization(bleu_tokenization)
        return score_directions(
            bundles,
            own,
            part,
            config=config,
            autocast=autocast,
            tokenization=bleu_tokenization,
            report=report,
        )[1]
    translator = Translator.of(*bundles, to=to, autocast=autocast)
    sources, references = own.lines(part) if own else _read(*files or ("", ""))
    tokenization = bleu_tokenization or _tokenization(bundles[0], references, to, report)
    check_tokenization(tokenization)
    translations, scores = timed_scores(
        translator,
        sources,
        references,
        config=config,
        tokenization=tokenization,
    )
    return _with_tokenized(scores, translations, references) if tokenized else scores


def _with_tokenized(
    scores: dict[str, Any], translations: Sequence[str], references: Sequence[str]
) -> dict[str, Any]:
    """Return the scores with tokenised BLEU and its signature."""
    extra = tokenized_bleu(translations, references)
    signatures = scores["signature"] | extra["signature"]
    return {**scores, "tokenized_bleu": extra["tokenized_bleu"], "signature": signatures}


def _one_text(models: Sequence[str | Path], trust_code: TrustCode) -> RunFolder | None:
    """Return the run that `models` is where it is one alone, of one text."""
    runs = [RunFolder(Path(path)) for path in models]
    alone = len(runs) == 1 and runs[0].recipe_path.exists()
    translates = alone and recorded_recipe(runs[0].path, trust_code=trust_code).translates
    return runs[0] if alone and not translates else None


def _perplexity(
    run: RunFolder,
    part: str,
    device: torch.device,
    asked: PrecisionName,
    cache: Path,
    trust_code: TrustCode,
    report: Report | None,
) -> dict[str, Any]:
    data = _own_part(run.path, part, cache, trust_code, report)
    recipe = recorded_recipe(run.path, trust_code=trust_code)
    bundle = load_bundle(bundle_path(run.path), device, trust_code=trust_code)
    batches = held_out_batches(recipe, data, part)
    precision = bundle_precision(bundle, asked)
    return timed_perplexity(bundle.model, batches, device=device, precision=precision)


def _tokenization(bundle: Bundle, references: Sequence[str], to: str, report: Report | None) -> str:
    """Return how the BLEUs of the bundle's run split text; of one from before there was a choice, as it would now."""
    recorded: str | None = bundle.config.training.get("bleu_tokenization")
    language = to or (bundle.config.languages or {}).get("target", "")
    return recorded or choose_tokenization(references, language=language, report=report)


def _own_part(
    run: str | Path, part: str, cache: Path, trust_code: TrustCode, report: Report | None
) -> PreparedData:
    """Return the data of a run that has this part."""
    if not (Path(run) / "recipe.json").exists():
        raise ConfigError(
            f"{run} is a bundle, which has no {part} part of its own; give --source and --reference"
        )
    if part not in ("valid", "test"):
        raise ConfigError(f"there is no part '{part}' to evaluate; choose valid or test")
    recipe = recorded_recipe(run, trust_code=trust_code)
    return held_out_text(RunFolder(Path(run)), recipe, cache=cache, report=report)


def _read(source: str | Path, reference: str | Path) -> tuple[list[str], list[str]]:
    pairs = list(read_pairs(source, reference))
    return [source for source, _ in pairs], [reference for _, reference in pairs]
