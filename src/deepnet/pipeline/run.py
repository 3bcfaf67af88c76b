"""A whole run: prepare, train, bundle, score the test part."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deepnet.data.prefetch import Prefetched
from deepnet.data.prepare import PreparedData, say_nothing
from deepnet.errors import ConfigError
from deepnet.evaluation.tokenization import bleu_signature
from deepnet.pipeline.beginning import first_batches, preparation
from deepnet.pipeline.budgeting import settle_memory
from deepnet.pipeline.devices import choose_device
from deepnet.pipeline.fine_tuning import take_weights, with_vocabulary_of
from deepnet.pipeline.finishing import score_test, write_bundle
from deepnet.pipeline.fitting import refuse_what_cannot_fit
from deepnet.pipeline.keeping import keep_text, kept_text, whole_text
from deepnet.pipeline.measuring import make_recorder, probe_batch
from deepnet.pipeline.preparing import (
    CACHE,
    Report,
    build_model,
    make_loader,
    mixture_table,
    prepare_data,
    sized_model,
)
from deepnet.pipeline.recipe import Recipe
from deepnet.pipeline.resuming import describe_again, fixed_settings, resumed, with_precision
from deepnet.pipeline.settling import settle_clipping, settle_model, settle_tokenization
from deepnet.pipeline.validating import HeldOut
from deepnet.record import RunFolder
from deepnet.schemes.base import ResidualScheme
from deepnet.schemes.catalogue import TrustCode
from deepnet.training.engine.precision import Precision, resolve_precision
from deepnet.training.engine.ranks import Ranks, joined_ranks
from deepnet.training.loop import TrainingResult, train_loop
from deepnet.training.loss import token_loss
from deepnet.training.probing import Probing
from deepnet.training.session import AfterUpdate, Sink
from deepnet.training.sinks.progress import format_incident
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
    """Of the test part: BLEU and chrF with signatures, or of one text loss and perplexity; None where interrupted."""

    @property
    def bundle(self) -> Path:
        """Return the folder of the finished model."""
        return RunFolder(self.folder).bundle


@dataclass(frozen=True)
class _Settled:
    """A run before its first update, once everything is settled that its recipe leaves open."""

    recipe: Recipe
    data: PreparedData
    tokenization: str | None
    """How its BLEUs split text, None where nothing is translated."""
    start_from: str | None
    """Whose weights it starts from, if another's."""
    ranks: Ranks
    report: Report

    def model(self) -> Transformer:
        """Return the model as it is drawn."""
        return build_model(self.recipe, self.data.tokenizers)


def run_recipe(
    recipe: Recipe,
    *,
    out: str | Path,
    resume: bool = False,
    start_from: str | Path | None = None,
    device: str = "auto",
    cache: Path = CACHE,
    trust_code: TrustCode = (),
    report: Report = print,
    sinks: Sequence[Sink] = (),
    score: bool = True,
) -> FinishedRun:
    """Prepare, train, bundle and score; `resume` goes on with the run in `out`.

    Without `score` the test part is not scored, and so not translated either.
    `start_from` is a run or bundle to fine-tune, whose vocabulary takes the place of the recipe's; `trust_code` names
    the classes that it may bring. Raises ConfigError where `out` holds another run or the memory cannot hold this one,
    DataError where the text cannot be used, DivergenceError where training is not finite any more; the last good
    checkpoint stays.
    """
    with joined_ranks(choose_device(device)) as ranks:
        report = report if ranks.is_writer else say_nothing
        if ranks.is_writer and not resume:
            RunFolder.check_free(out)
        origin: str | None = None
        if resume:
            recipe, origin = resumed(recipe, RunFolder.open(out), report)
        elif start_from:
            recipe = with_vocabulary_of(recipe, start_from, trust_code)
            origin = str(Path(start_from).resolve())
        settled = _settle(recipe, RunFolder(Path(out)), ranks, report, cache, origin, resume)
        model = settled.model()
        if origin:
            take_weights(model, origin, trust_code)
        with _opened_run(settled, out, resume=resume) as run:
            result = _train(settled, run, model, sinks if ranks.is_writer else (), resume=resume)
            if not ranks.is_writer or result.stopped == "interrupted":
                return FinishedRun(run.path, result, None)
            return FinishedRun(run.path, result, _finish(settled, run, model, score=score))


def _settle(
    recipe: Recipe,
    run: RunFolder,
    ranks: Ranks,
    report: Report,
    cache: Path,
    start_from: str | None,
    resume: bool,
) -> _Settled:
    """Prepare the text, and settle what the recipe leaves open: as the run was begun, where it is resumed."""
    recipe = with_precision(recipe, run if resume else None, ranks.device)
    prepare = partial(whole_text, run) if resume else prepare_data
    is_first = os.environ.get("LOCAL_RANK") == "0"  # torchrun's number on this node
    data = prepare_once(
        partial(prepare, recipe, cache=cache), ranks, report, is_first_of_node=is_first
    )
    if not resume:
        size = sized_model(recipe.model, data.tokenizers).vocab_size
        recipe = settle_model(recipe, vocab_size=size, start_from=start_from, report=report)
    _check_held_out(recipe, data)
    recipe = settle_memory(recipe, data, run=run if resume else None, ranks=ranks, report=report)
    recipe = settle_clipping(recipe, start_from=start_from, report=report)
    if not resume and ranks.world_size == 1 and recipe.training.engine != "sharded":
        refuse_what_cannot_fit(recipe, data, device=ranks.device, report=report)
    recorded = run.read_recipe() if resume else None
    tokenization = settle_tokenization(
        recipe, data.lines("valid")[-1], recorded=recorded, report=report
    )
    return _Settled(recipe, data, tokenization, start_from, ranks, report)


def prepare_once(
    prepare: Callable[..., PreparedData], ranks: Ranks, report: Report, *, is_first_of_node: bool
) -> PreparedData:
    """Prepare on the writer, then once on each node that does not see its disk; all then find what was prepared."""
    if ranks.is_writer:
        prepare(report=report)
    ranks.wait()
    if is_first_of_node:
        prepare()
    ranks.wait()
    return prepare()


def _check_held_out(recipe: Recipe, data: PreparedData) -> None:
    """Refuse, before training, held-out sentences that learned positions could not translate after it."""
    for part in ("valid", "test"):
        too_long = data.summary["parts"][part]["too_long"]
        if too_long and recipe.model.positions == "learned":
            raise ConfigError(
                f"{too_long:,} {part} sentences are longer than data.max_sentence_tokens = "
                f"{recipe.data.max_sentence_tokens}, and learned positions cannot go beyond "
                "model.max_positions; raise both, or take other positions"
            )


@contextmanager
def _opened_run(settled: _Settled, out: str | Path, *, resume: bool) -> Iterator[RunFolder]:
    """Yield the run, made or found by the writer, that no other command can write meanwhile."""
    if not settled.ranks.is_writer:
        settled.ranks.wait()
        yield RunFolder(Path(out))
        return
    with RunFolder.locked(
        out,
        recipe=settled.recipe.model_dump(),
        resume=resume,
        start_from=settled.start_from,
        bleu_tokenization=settled.tokenization,
    ) as run:
        if not (resume and kept_text(run)):
            keep_text(run, settled.data)
        settled.ranks.wait()
        yield run


def _train(
    settled: _Settled, run: RunFolder, model: Transformer, sinks: Sequence[Sink], *, resume: bool
) -> TrainingResult:
    recipe, data, ranks = settled.recipe, settled.data, settled.ranks
    tokenization, report = settled.tokenization, settled.report
    if tokenization and recipe.validation.bleu:
        report(f"validation BLEU: {bleu_signature(tokenization)}")
    precision = resolve_precision(
        recipe.training.precision, device=ranks.device, width=recipe.model.d_model
    )
    loss = token_loss(label_smoothing=recipe.training.label_smoothing)
    whole = make_loader(recipe, data)
    mine = make_loader(recipe, data, rank=ranks.rank, world_size=ranks.world_size)
    for line in mixture_table(whole.dataset):
        report(line)
    with Prefetched(mine, pinned=ranks.device.type == "cuda") as ahead:
        return train_loop(
            model,
            loader=ahead,
            loss=loss,
            run=run,
            training=recipe.training,
            optimizer=recipe.optimizer,
            schedule=recipe.schedule,
            validate=HeldOut(
                recipe, data, ranks=ranks, precision=precision, tokenization=tokenization
            ),
            prepare=preparation(model, first_batches(whole, ranks.device), loss=loss),
            after_update=follow_updates(model.scheme),
            policies=parameter_policies(model),
            blocks=[layer for stack in model.stacks() for layer in stack.layers],
            precision=precision,
            ranks=ranks,
            sinks=sinks,
            on_incident=[lambda incident: report(format_incident(incident))],
            guard=recipe.guard,
            probing=_probing(recipe, data, precision, ranks.device),
            settings=fixed_settings(recipe, run, data),
            resume=resume,
            on_resume=partial(describe_again, run, recipe, tokenization),
        )


def _finish(
    settled: _Settled, run: RunFolder, model: Transformer, *, score: bool
) -> dict[str, Any] | None:
    """Write the run's bundle, and return its scores where they are wanted."""
    recipe, data, tokenization = settled.recipe, settled.data, settled.tokenization
    if recipe.training.engine == "sharded":
        model = settled.model()  # the other is in parts
    write_bundle(recipe, run, model, data, tokenization=tokenization, report=settled.report)
    if not score:
        return None
    return score_test(recipe, run, data, device=settled.ranks.device, tokenization=tokenization)


def _probing(
    recipe: Recipe, data: PreparedData, precision: Precision, device: torch.device
) -> Probing | None:
    """Return how training is measured on sentences of the valid part, None where it is not."""
    if not recipe.probes.every:
        return None
    batch = probe_batch(recipe, data, sentences=recipe.probes.sentences).to(device)
    return Probing(recipe.probes.every, partial(make_recorder, batch=batch, precision=precision))


def follow_updates(scheme: ResidualScheme) -> AfterUpdate:
    """Return what lets a scheme do what it does after each update: to the weights, and to its scheduled scales."""
    behind: int | None = None

    def follow(model: nn.Module, step: int) -> None:
        nonlocal behind
        scheme.after_update(model)
        if isinstance(model, Transformer):  # it may have updates behind it that this run did not do
            if behind is None:  # asked once, as the device is waited for
                behind = int(model.scheme_step) + 1 - step
            scheme.advance(model, behind + step)

    return follow
