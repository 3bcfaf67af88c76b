"""The probes on what a run has saved."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from deepnet.bundle import load_bundle, load_model_tensors, model_tensors, read_tensors
from deepnet.data.loader import Batch
from deepnet.errors import CheckpointError, ConfigError, DataError, DeepNetError
from deepnet.pipeline.beginning import first_batches, preparation
from deepnet.pipeline.devices import choose_device
from deepnet.pipeline.keeping import held_out_text, whole_text
from deepnet.pipeline.measuring import make_recorder, probe_batch
from deepnet.pipeline.opening import bundle_path, recorded_recipe
from deepnet.pipeline.preparing import (
    CACHE,
    Report,
    build_model,
    make_loader,
)
from deepnet.pipeline.recipe import Recipe
from deepnet.probes.model_update import evaluating
from deepnet.probes.recorder import Record
from deepnet.record import RunFolder
from deepnet.schemes.catalogue import TrustCode
from deepnet.training import batches
from deepnet.training.checkpoint.folder import (
    checkpoint_path,
    latest_checkpoint,
    list_checkpoints,
    read_header,
)
from deepnet.training.engine.precision import Precision, resolve_precision
from deepnet.training.loss import token_loss
from deepnet.transformer.models import Transformer

_SINCE_FIRST = ("model_update", "predicted_update")
"""The readings that compare with a run's first weights."""


@dataclass(frozen=True, kw_only=True)
class ProbedRun:
    """What the probes read off saved weights."""

    weights: str
    """The checkpoint or bundle."""
    steps: list[int]
    """Updates behind the weights; several where they are an average."""
    sentences: int
    """Sentences of the valid part that the model was measured on."""
    loss: float
    """Training loss on them in nats per predicted token, without dropout; may not be finite."""
    readings: Record
    """By probe and place, those of layers as a list over the layers; None is what is not there or not finite."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON, a loss that is not finite as None."""
        finite = float("-inf") < self.loss < float("inf")
        return {**asdict(self), "loss": self.loss if finite else None}


def probe_run(
    path: str | Path,
    *,
    step: int | None = None,
    sentences: int | None = None,
    device: str = "auto",
    cache: Path = CACHE,
    trust_code: TrustCode = (),
    report: Report | None = None,
) -> ProbedRun:
    """Measure a run's latest checkpoint, or that of `step`, or the bundle in a run folder that `path` is.

    On the first `sentences` of the valid part, by default as many as probes.sentences of the recipe.
    The model update is since the run's first weights, which are drawn again from recipe and seed; where that needs
    what is not here, it is since what the run's own probes recorded of them, and else left out, which is said.
    `trust_code` names the classes that the run may bring. Raises ConfigError where `path` is no run or has no such
    checkpoint, CheckpointError where it has none at all. Writes nothing.
    """
    run, weights = _saved(Path(path), step)
    recipe = recorded_recipe(run.path, trust_code=trust_code)
    data = held_out_text(run, recipe, cache=cache, report=report)
    place = choose_device(device)
    precision = resolve_precision(
        recipe.training.precision, device=place, width=recipe.model.d_model
    )
    model = build_model(recipe, data.tokenizers).to(place)
    count = recipe.probes.sentences if sentences is None else sentences
    batch = probe_batch(recipe, data, sentences=count).to(place)
    unknown = _take_first_weights(run, recipe, model, cache, trust_code)
    first = _recorded_start(run, recipe, count) if unknown else None
    recorder = make_recorder(model, batch, precision=precision, first=first)
    steps = _take(model, weights, trust_code)
    loss = _differentiated(recipe, model, batch, precision)
    readings = {"gradient_norm": recorder.gradients(), **recorder.measure()}
    if unknown and first is None:
        readings = {name: table for name, table in readings.items() if name not in _SINCE_FIRST}
        if report:
            report(
                f"the model update is left out: the run's first weights are not here ({unknown})"
            )
    return ProbedRun(
        weights=str(weights), steps=steps, sentences=len(batch.source), loss=loss, readings=readings
    )


def _saved(path: Path, step: int | None) -> tuple[RunFolder, Path]:
    """Return the run and which of its weights to measure: a checkpoint or a bundle."""
    if (path / "config.json").exists():
        if step is not None or not RunFolder(path.parent).recipe_path.exists():
            raise ConfigError(
                f"{path} is a bundle: it has one set of weights, and is measured on the text of the run whose folder "
                "it is in; give a run folder, or a bundle in one without a step"
            )
        return RunFolder.open(path.parent), path
    run = RunFolder.open(path)
    if step is not None:
        wanted = checkpoint_path(run.checkpoints, step=step)
        if not wanted.exists():
            there = ", ".join(p.name for p in list_checkpoints(run.checkpoints)) or "none"
            raise ConfigError(f"{path} has no checkpoint of step {step}; there are: {there}")
        return run, wanted
    latest = latest_checkpoint(run.checkpoints)
    if not latest and not run.bundle.exists():
        raise CheckpointError(
            f"the run {path} has saved no weights yet: there is nothing to measure"
        )
    return run, latest or run.bundle


def _take_first_weights(
    run: RunFolder, recipe: Recipe, model: Transformer, cache: Path, trust_code: TrustCode
) -> DeepNetError | None:
    """Give a freshly drawn model what it had before the run's first update; return what is missing for it, if anything.

    The weights of another run, or training text for a scheme that prepares itself on it.
    """
    try:
        if start_from := run.read_recipe().get("start_from"):
            given = load_bundle(bundle_path(start_from), trust_code=trust_code).model
            load_model_tensors(model, model_tensors(given))
        loss = token_loss(label_smoothing=recipe.training.label_smoothing)
        prepare = preparation(model, _training_batches(run, recipe, model, cache), loss=loss)
        if prepare:
            prepare(model)
    except (CheckpointError, ConfigError, DataError) as error:
        return error
    return None


def _training_batches(
    run: RunFolder, recipe: Recipe, model: Transformer, cache: Path
) -> Iterator[batches.Batch]:
    """Yield the run's first micro-batches; its training text is looked for when the first of them is asked for."""
    data = whole_text(run, recipe, cache=cache)
    yield from first_batches(make_loader(recipe, data), next(model.parameters()).device)


def _recorded_start(run: RunFolder, recipe: Recipe, sentences: int) -> dict[str, Tensor] | None:
    """Return what the run's own probes saw of its first weights, None where that was not on these sentences."""
    if sentences != recipe.probes.sentences or not run.probe_start.exists():
        return None
    return read_tensors(run.probe_start)


def _take(model: Transformer, weights: Path, trust_code: TrustCode) -> list[int]:
    """Give the model the weights of a checkpoint or bundle, and return the steps that they are of."""
    if (weights / "config.json").exists():
        bundle = load_bundle(weights, trust_code=trust_code)
        load_model_tensors(model, model_tensors(bundle.model))
        steps: list[int] = bundle.config.training.get("steps", [])
        return steps
    load_model_tensors(model, read_tensors(weights / "model.safetensors"))
    state: Any = read_header(weights)["state"]
    return [state.step]


def _differentiated(
    recipe: Recipe, model: Transformer, batch: Batch, precision: Precision
) -> float:
    """Leave the gradients of the batch on the model and return its loss per token."""
    loss = token_loss(label_smoothing=recipe.training.label_smoothing)
    with evaluating(model), precision.autocast():
        value = loss(model, batch) / batch.num_tokens
    value.backward()  # type: ignore[no-untyped-call]
    return value.item()
