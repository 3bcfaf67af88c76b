"""A whole run: prepare, train, bundle, translate the test part, score."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deepnet.bundle import load_bundle, load_model_tensors, model_tensors
from deepnet.data.loader import UpdateLoader
from deepnet.data.prepare import PreparedData
from deepnet.errors import ConfigError
from deepnet.pipeline.finishing import score_test, write_bundle
from deepnet.pipeline.opening import bundle_path
from deepnet.pipeline.preparing import CACHE, Report, build_model, prepare_data
from deepnet.pipeline.recipe import Recipe
from deepnet.pipeline.validating import make_validation
from deepnet.record import RunFolder
from deepnet.schemes.base import ResidualScheme
from deepnet.training.distributed import Ranks, joined_ranks
from deepnet.training.loop import Sink, TrainingResult, train_loop
from deepnet.training.loss import translation_loss
from deepnet.training.precision import resolve_precision
from deepnet.transformer.initialize import parameter_policies
from deepnet.transformer.models import Transformer


@dataclass(frozen=True)
class FinishedRun:
    """What a run came to."""

    folder: Path
    """The run folder; `bundle` in it is the model."""
    training: TrainingResult
    """How training ended."""
    scores: dict[str, Any] | None
    """BLEU and chrF of the test part with signatures; None where training was interrupted."""

    @property
    def bundle(self) -> Path:
        """Return the folder of the finished model."""
        return RunFolder(self.folder).bundle


def run_recipe(
    recipe: Recipe,
    *,
    out: str | Path,
    resume: bool = False,
    start_from: str | Path | None = None,
    device: str = "auto",
    cache: Path = CACHE,
    report: Report = print,
    sinks: Sequence[Sink] = (),
) -> FinishedRun:
    """Prepare, train, bundle, translate and score; `resume` goes on with the run in `out`.

    `start_from` is a run or bundle to fine-tune. Raises ConfigError where `out` holds another run, DataError where the
    text cannot be used, DivergenceError where training is not finite any more; the last good checkpoint stays.
    """
    with joined_ranks(choose_device(device)) as ranks, ExitStack() as stack:
        report = report if ranks.is_writer else _say_nothing
        data = _prepare(recipe, ranks, cache, report)
        model = build_model(recipe, data.tokenizers)
        if start_from:
            _take_weights(model, start_from)
        run = _open_run(recipe, out, resume=resume, ranks=ranks)
        result = _train(recipe, run, model, data, ranks, resume, sinks if ranks.is_writer else ())
        if not ranks.is_writer or result.stopped == "interrupted":
            return FinishedRun(run.path, result, None)
        stack.close()
        write_bundle(recipe, run, model, data)
        scores = score_test(run, data, decoding=recipe.decoding, device=ranks.device)
        return FinishedRun(run.path, result, scores)


def choose_device(name: str) -> torch.device:
    """Return the device of that name; "auto" is the first GPU where there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"the device '{name}' cannot be used: {error}") from error


def _prepare(recipe: Recipe, ranks: Ranks, cache: Path, report: Report) -> PreparedData:
    """Prepare on the writer first; the other ranks then find what it prepared."""
    if ranks.is_writer:
        prepare_data(recipe, cache=cache, report=report)
    ranks.wait()
    return prepare_data(recipe, cache=cache)


def _take_weights(model: Transformer, start_from: str | Path) -> None:
    """Give `model` the weights of a run or bundle of the same shape, to fine-tune them."""
    load_model_tensors(model, model_tensors(load_bundle(bundle_path(start_from)).model))
    model.advance(0)


def _open_run(recipe: Recipe, out: str | Path, *, resume: bool, ranks: Ranks) -> RunFolder:
    if not ranks.is_writer:
        ranks.wait()
        return RunFolder(Path(out))
    run = RunFolder.open(out) if resume else RunFolder.create(out, recipe=recipe.model_dump())
    ranks.wait()
    return run


def _train(
    recipe: Recipe,
    run: RunFolder,
    model: Transformer,
    data: PreparedData,
    ranks: Ranks,
    resume: bool,
    sinks: Sequence[Sink],
) -> TrainingResult:
    precision = resolve_precision(
        recipe.training.precision, device=ranks.device, width=recipe.model.d_model
    )
    loader = UpdateLoader(
        data.dataset("train"),
        recipe.batching,
        seed=recipe.training.seed,
        rank=ranks.rank,
        world_size=ranks.world_size,
    )
    scheme = model.scheme
    scheme.prepare(model, (batch for update in loader.updates(0) for batch in update.batches))
    result = train_loop(
        model,
        loader=loader,
        loss=translation_loss(label_smoothing=recipe.training.label_smoothing),
        run=run,
        training=recipe.training,
        optimizer=recipe.optimizer,
        schedule=recipe.schedule,
        validate=make_validation(recipe, data, device=ranks.device, precision=precision),
        after_update=partial(follow_update, scheme),
        policies=parameter_policies(model),
        blocks=[layer for stack in model.stacks() for layer in stack.layers],
        precision=precision,
        ranks=ranks,
        sinks=sinks,
        settings=_fixed_settings(recipe),
        resume=resume,
    )
    if resume and ranks.is_writer:
        run.describe(recipe=recipe.model_dump())
    return result


def follow_update(scheme: ResidualScheme, model: nn.Module, step: int) -> None:
    """Let a scheme do what it does after each update: to the weights, and to its scheduled scales."""
    scheme.after_update(model)
    scheme.advance(model, step)  # type: ignore[arg-type]


def _fixed_settings(recipe: Recipe) -> dict[str, Any]:
    """Return what a resumed run must not change besides the sections of training."""
    sections = ("data", "cleaning", "tokenizer", "batching", "model", "scheme")
    dumped = recipe.model_dump(mode="json")
    return {name: dumped[name] for name in sections}


def _say_nothing(message: str) -> None:
    """Discard a message, on the ranks that do not write."""
