"""The first updates of a recipe, and what its model shows after some of them."""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from deepnet.data.prepare import PreparedData
from deepnet.errors import DivergenceError
from deepnet.experiments.measures import Measure
from deepnet.pipeline.beginning import first_batches, preparation
from deepnet.pipeline.devices import choose_device
from deepnet.pipeline.measuring import probe_batch
from deepnet.pipeline.preparing import build_model, make_loader
from deepnet.pipeline.recipe import Recipe
from deepnet.pipeline.run import follow_updates
from deepnet.record import RunFolder
from deepnet.training.engine.ranks import Ranks
from deepnet.training.loop import train_loop
from deepnet.training.loss import token_loss
from deepnet.transformer.initialize import parameter_policies
from deepnet.transformer.models import Transformer


class _Watch:
    """Asks the measures after the updates that it was given; 0 is before the first."""

    def __init__(
        self, readers: Iterable[Callable[[], dict[str, Any]]], at: Collection[int]
    ) -> None:
        self._readers = list(readers)
        self._at = at
        self.readings: list[dict[str, Any]] = []

    def look(self, step: int) -> None:
        if step in self._at:
            found = [reader() for reader in self._readers]
            self.readings.append({"step": step} | {k: v for one in found for k, v in one.items()})


def watch_updates(
    recipe: Recipe,
    data: PreparedData,
    *,
    at: Collection[int],
    measures: Iterable[Measure],
    sentences: int,
    device: str = "auto",
) -> tuple[list[dict[str, Any]], str]:
    """Train by a recipe, and return what was read of the model after the updates `at`, and why it ended early, if so.

    Readings are taken on the first `sentences` of the valid part, in evaluation mode. Nothing is kept on disk. Raises
    KeyboardInterrupt where a signal ended it.
    """
    place = choose_device(device)
    model = build_model(recipe, data.tokenizers).to(place)
    batch = probe_batch(recipe, data, sentences=sentences).to(place)
    loss = token_loss(label_smoothing=recipe.training.label_smoothing)
    loader = make_loader(recipe, data)
    own = preparation(model, first_batches(loader, place), loss=loss)
    if own:
        own(model)
    watch = _Watch([measure(model, batch) for measure in measures], at)
    watch.look(0)
    stopped = ""
    with TemporaryDirectory() as folder:
        try:
            result = train_loop(
                model,
                loader=loader,
                loss=loss,
                run=RunFolder.create(Path(folder) / "run", recipe={}),
                training=recipe.training,
                optimizer=recipe.optimizer,
                schedule=recipe.schedule,
                guard=recipe.guard,
                policies=parameter_policies(model),
                ranks=Ranks(place),
                after_update=partial(_after, follow_updates(model.scheme), watch),
            )
            if result.stopped == "interrupted":
                raise KeyboardInterrupt
        except DivergenceError as error:
            stopped = str(error)
    return watch.readings, stopped


def _after(
    follow: Callable[[nn.Module, int], None], watch: _Watch, model: Transformer, step: int
) -> None:
    follow(model, step)
    watch.look(step)
