"""How good a finished model's translations are: on a part of its own data, or on any pair of files."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from deepnet.data.text import read_pairs
from deepnet.errors import ConfigError
from deepnet.evaluation.scores import tokenized_bleu
from deepnet.pipeline.devices import choose_device
from deepnet.pipeline.opening import decoding_settings, open_models, recorded_recipe
from deepnet.pipeline.preparing import CACHE, Report, prepare_data
from deepnet.pipeline.scoring import timed_scores
from deepnet.schemes.catalogue import TrustCode


def evaluate(
    models: Sequence[str | Path],
    *,
    overrides: Iterable[str] = (),
    part: str = "test",
    files: tuple[str | Path, str | Path] | None = None,
    tokenized: bool = False,
    device: str = "auto",
    cache: Path = CACHE,
    trust_code: TrustCode = (),
    report: Report | None = None,
) -> dict[str, Any]:
    """Translate and score; return {"bleu", "chrf", "signature": {...}, "sentences", "seconds"}.

    The text is `part` ("valid" or "test") of the first run's data, or the source and reference `files`. `tokenized`
    adds "tokenized_bleu" with its signature, for text that is tokenised already; `trust_code` names the classes that
    the models may bring.
    """
    translator, bundle = open_models(models, device=choose_device(device), trust_code=trust_code)
    config = decoding_settings(bundle, overrides)
    sources, references = (
        _own_part(models[0], part, cache, trust_code, report) if files is None else _read(*files)
    )
    translations, scores = timed_scores(translator, sources, references, config=config)
    if tokenized:
        extra = tokenized_bleu(translations, references)
        signatures = scores["signature"] | extra["signature"]
        scores |= {"tokenized_bleu": extra["tokenized_bleu"], "signature": signatures}
    return scores


def _own_part(
    run: str | Path, part: str, cache: Path, trust_code: TrustCode, report: Report | None
) -> tuple[list[str], list[str]]:
    if not (Path(run) / "recipe.json").exists():
        raise ConfigError(
            f"{run} is a bundle, which has no {part} part of its own; give --source and --reference"
        )
    if part not in ("valid", "test"):
        raise ConfigError(f"there is no part '{part}' to evaluate; choose valid or test")
    recipe = recorded_recipe(run, trust_code=trust_code)
    sources, references = prepare_data(recipe, cache=cache, report=report).lines(part)
    return sources, references


def _read(source: str | Path, reference: str | Path) -> tuple[list[str], list[str]]:
    pairs = list(read_pairs(source, reference))
    return [source for source, _ in pairs], [reference for _, reference in pairs]
