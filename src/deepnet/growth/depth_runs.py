"""Run folders of several depths: what each came to, what its model costs, and that one law may be fitted to them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from deepnet.data.sources import FILE_FIELDS
from deepnet.data.tokenizer import MODEL_FIELDS
from deepnet.errors import ConfigError
from deepnet.growth.law import Point
from deepnet.pipeline.keeping import kept_text
from deepnet.pipeline.opening import recorded_recipe
from deepnet.pipeline.preparing import build_model
from deepnet.pipeline.recipe import Recipe
from deepnet.planning.forward_cost import ForwardCost, forward_cost
from deepnet.record import RunFolder
from deepnet.report.folder import ReportedRun, read_runs
from deepnet.report.recipes import Row, table_of
from deepnet.report.rounding import real
from deepnet.report.summary import best_validation
from deepnet.schemes.catalogue import TrustCode

_TASK = ("data.", "cleaning.", "tokenizer.", "model.", "prepared.", "bleu.")
"""Beginnings of the keys that say what is learnt, from what text, and at what width."""
_FREE = (
    *("model.encoder_layers", "model.decoder_layers", "model.loops", "model.coefficient_depth"),
    *("model.dropout", "model.attention_dropout", "model.activation_dropout", "training.seed"),
    *(f"data.{key}" for key in FILE_FIELDS),  # paths, where contents count
    *(f"tokenizer.{key}" for key in MODEL_FIELDS),
)
"""Keys that runs of one law may differ in."""
_DEPTHS = _FREE[:4] + _FREE[7:]
"""Those that are not worth a word."""


@dataclass(frozen=True, kw_only=True)
class DepthRun:
    """A run of some depth."""

    name: str
    path: Path
    recipe: Recipe
    depth: int
    """Layers of all stacks that run."""
    bleu: float
    """Of the test part; NaN where there is none."""
    loss: float
    """The best of the valid part, in nats per token; NaN where there is none."""
    settings: dict[str, Any]
    """Section -> key -> value, with what else the numbers depend on."""


def read_depth_runs(paths: Sequence[str | Path], *, trust_code: TrustCode = ()) -> list[DepthRun]:
    """Read run folders for one law; `trust_code` names the classes that they may bring.

    Raises ConfigError where one holds no run, or where task or width differ, CheckpointError where code is not trusted.
    """
    runs = [
        _depth_run(found, recorded_recipe(path, trust_code=trust_code))
        for path, found in zip(paths, read_runs(paths), strict=True)
    ]
    for row in _differing(runs):
        if row.key.startswith(_TASK) and row.key not in _FREE:
            raise ConfigError(
                f"the runs differ in {row.key} ({_values(row, runs)}), and a law of depth is of one task at one width; "
                "fit them apart"
            )
    return runs


def other_differences(runs: Sequence[DepthRun]) -> list[str]:
    """Return the keys, besides depth and seed, in which runs differ, with the values."""
    return [
        f"{row.key}: {_values(row, runs)}" for row in _differing(runs) if row.key not in _DEPTHS
    ]


def points_of(runs: Sequence[DepthRun]) -> dict[str, list[Point]]:
    """Return the points of "bleu" and "loss", each where every run has it.

    Raises ConfigError where there is neither.
    """
    found = {
        "bleu": [Point(run.depth, run.bleu) for run in runs],
        "loss": [Point(run.depth, run.loss) for run in runs],
    }
    whole = {name: p for name, p in found.items() if all(one.value == one.value for one in p)}
    if not whole:
        lacking = next(run for run in runs if run.loss != run.loss)
        raise ConfigError(
            f"{lacking.path} has neither a score nor a validation yet; leave it out, or train on: "
            f"deepnet train {lacking.path} --out {lacking.path} --resume"
        )
    return whole


def costs_of(runs: Sequence[DepthRun]) -> dict[int, ForwardCost]:
    """Return what a model of each depth costs, of those whose run has kept its text."""
    return dict(_costs({run.depth: run for run in runs}))


def _costs(runs: dict[int, DepthRun]) -> Iterator[tuple[int, ForwardCost]]:
    for depth, run in sorted(runs.items()):
        text = kept_text(RunFolder(run.path))
        if text:
            yield depth, forward_cost(partial(build_model, run.recipe, text.tokenizers))


def _depth_run(found: ReportedRun, recipe: Recipe) -> DepthRun:
    text, best = kept_text(RunFolder(found.path)), best_validation(found)
    named = {"prepared": {"text": text.name.rpartition("-")[2]}} if text else {}
    scores = {"bleu": {"signature": found.bleu_signature}} if found.scores else {}
    return DepthRun(
        name=found.name,
        path=found.path,
        recipe=recipe,
        depth=sum(recipe.model.running_layers.values()),
        bleu=real((found.scores or {}).get("bleu")),
        loss=best[0] if best else float("nan"),
        settings={**recipe.model_dump(mode="json"), **named, **scores},
    )


def _differing(runs: Sequence[DepthRun]) -> list[Row]:
    """Return the keys in which the runs that have them differ."""
    rows = table_of([run.settings for run in runs])
    return [row for row in rows if len({*row.values} - {None}) > 1]


def _values(row: Row, runs: Sequence[DepthRun]) -> str:
    """Return each value once, with the first run that has it."""
    first: dict[str, str] = {}
    for value, run in zip(row.values, runs, strict=True):
        if value is not None:
            first.setdefault(value, run.name)
    return ", ".join(f"{value} in {name}" for value, name in first.items())
