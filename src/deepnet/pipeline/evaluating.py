"""How good a finished model's translations are: on a part of its own data, or on any pair of files."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from deepnet.bundle import Bundle
from deepnet.data.text import read_pairs
from deepnet.errors import ConfigError
from deepnet.evaluation.scores import tokenized_bleu
from deepnet.evaluation.tokenization import check_tokenization, choose_tokenization
from deepnet.pipeline.devices import choose_device
from deepnet.pipeline.opening import decoding_settings, open_models
from deepnet.pipeline.preparing import CACHE, Report, prepare_data
from deepnet.pipeline.recipe import load_recipe
from deepnet.pipeline.scoring import timed_scores


def evaluate(
    models: Sequence[str | Path],
    *,
    overrides: Iterable[str] = (),
    part: str = "test",
    files: tuple[str | Path, str | Path] | None = None,
    tokenized: bool = False,
    bleu_tokenization: str | None = None,
    device: str = "auto",
    cache: Path = CACHE,
    report: Report | None = None,
) -> dict[str, Any]:
    """Translate and score; return {"bleu", "chrf", "signature": {...}, "sentences", "seconds"}.

    The text is `part` ("valid" or "test") of the first run's data, or the source and reference `files`. `tokenized`
    adds "tokenized_bleu" with its signature, for text that is tokenised already. `bleu_tokenization` is how BLEU splits
    text; unset, as the first run did. Raises ConfigError where that needs a package that is not installed.
    """
    translator, bundle = open_models(models, device=choose_device(device))
    config = decoding_settings(bundle, overrides)
    sources, references = (
        _own_part(models[0], part, cache, report) if files is None else _read(*files)
    )
    tokenization = bleu_tokenization or _tokenization(bundle, references, report)
    check_tokenization(tokenization)
    translations, scores = timed_scores(
        translator, sources, references, config=config, tokenization=tokenization
    )
    if tokenized:
        extra = tokenized_bleu(translations, references)
        signatures = scores["signature"] | extra["signature"]
        scores |= {"tokenized_bleu": extra["tokenized_bleu"], "signature": signatures}
    return scores


def _tokenization(bundle: Bundle, references: Sequence[str], report: Report | None) -> str:
    """Return how the BLEUs of the bundle's run split text; of one from before there was a choice, as it would now."""
    recorded: str | None = bundle.config.training.get("bleu_tokenization")
    language = (bundle.config.languages or {}).get("target", "")
    return recorded or choose_tokenization(references, language=language, report=report)


def _own_part(
    run: str | Path, part: str, cache: Path, report: Report | None
) -> tuple[list[str], list[str]]:
    if not (Path(run) / "recipe.json").exists():
        raise ConfigError(
            f"{run} is a bundle, which has no {part} part of its own; give --source and --reference"
        )
    if part not in ("valid", "test"):
        raise ConfigError(f"there is no part '{part}' to evaluate; choose valid or test")
    sources, references = prepare_data(load_recipe(run), cache=cache, report=report).lines(part)
    return sources, references


def _read(source: str | Path, reference: str | Path) -> tuple[list[str], list[str]]:
    pairs = list(read_pairs(source, reference))
    return [source for source, _ in pairs], [reference for _, reference in pairs]
