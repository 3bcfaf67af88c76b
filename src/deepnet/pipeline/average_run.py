"""A bundle from the average of a run's latest checkpoints."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepnet.bundle import load_bundle
from deepnet.data.tokenizer import Tokenizers
from deepnet.errors import ConfigError
from deepnet.pipeline.finishing import bundle_languages, save_weights
from deepnet.pipeline.keeping import held_out_text
from deepnet.pipeline.opening import recorded_recipe
from deepnet.pipeline.preparing import CACHE, Report, build_model
from deepnet.pipeline.recipe import Recipe
from deepnet.record import RunFolder
from deepnet.schemes.catalogue import TrustCode
from deepnet.training.checkpoint.selection import select_checkpoints
from deepnet.transformer.models import Transformer


def average_run(
    path: str | Path,
    *,
    last: int,
    out: str | Path | None = None,
    cache: Path = CACHE,
    trust_code: TrustCode = (),
    report: Report | None = None,
) -> tuple[Path, list[int]]:
    """Average the `last` latest checkpoints of a run into the bundle `out`, by default RUN/average_<last>.

    Returns the bundle and the steps averaged. An unfinished run will do, too. `trust_code` names the classes that the
    run may bring. Raises ConfigError where the run keeps fewer checkpoints, CheckpointError where it has none.
    """
    run = RunFolder.open(path)
    if last < 1:
        raise ConfigError(f"'last' is {last}; expected at least 1 checkpoint to average")
    checkpoints = select_checkpoints(run.checkpoints, average_last=last)
    if len(checkpoints) < last:
        raise ConfigError(
            f"{path} keeps {len(checkpoints)} checkpoints, fewer than the {last} to average; "
            "ask for fewer, or train with a larger training.keep_last"
        )
    recipe = recorded_recipe(path, trust_code=trust_code)
    model, tokenizers, notice, languages = _template(run, recipe, cache, trust_code, report)
    bundle = Path(out) if out else run.path / f"average_{last}"
    steps = save_weights(
        bundle,
        checkpoints,
        recipe=recipe,
        model=model,
        tokenizers=tokenizers,
        languages=languages,
        tokenization=run.read_recipe().get("bleu_tokenization"),
        notice=notice,
    )
    return bundle, steps


def _template(
    run: RunFolder, recipe: Recipe, cache: Path, trust_code: TrustCode, report: Report | None
) -> tuple[Transformer, Tokenizers, str, Mapping[str, Any]]:
    """Return a model of the run's shape, its tokenizers, its data's notice and its languages.

    They are from its bundle, else from the data.
    """
    if run.bundle.exists():
        bundle = load_bundle(run.bundle, trust_code=trust_code)
        assert bundle.tokenizers is not None, "a run's bundle reads text"
        notice = bundle.config.training.get("notice", "")
        return bundle.model, bundle.tokenizers, notice, bundle.config.languages or {}
    data = held_out_text(run, recipe, cache=cache, report=report)
    languages = bundle_languages(recipe, data)
    return build_model(recipe, data.tokenizers), data.tokenizers, data.summary["notice"], languages
