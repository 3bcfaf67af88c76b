"""A proxy on the text of its recipe: what a trial trains, built and stepped."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any

import torch

from deepnet.data.loader import Batch, Update
from deepnet.data.prepare import PreparedData
from deepnet.doctor.proxy import compressed, follow_in_time, proxy_recipe, run_length
from deepnet.doctor.trial import LEAST_STEPS, Settings, Trial, Watcher, take_steps
from deepnet.pipeline.beginning import first_batches, preparation
from deepnet.pipeline.measuring import probe_batch
from deepnet.pipeline.outlook import find_end
from deepnet.pipeline.preparing import Report, build_model, make_loader, sized_model
from deepnet.pipeline.recipe import Recipe
from deepnet.pipeline.settling import settle_clipping, settle_model
from deepnet.training.config import ScheduleConfig
from deepnet.training.loss import token_loss
from deepnet.transformer.initialize import parameter_policies
from deepnet.transformer.models import Transformer

TEXT = 10
"""Updates' worth of text that a trial repeats: short, so that a model that can learn is soon below the frequencies."""
SENTENCES = 8
"""Valid sentences that the probes look at."""
_CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A proxy before its trial."""

    recipe: Recipe
    data: PreparedData
    schedule: ScheduleConfig
    """Pressed into the trial."""
    steps: int
    run: int
    """Updates of the run that the trial stands for."""
    text: Sequence[Update]

    @property
    def smoothing(self) -> float:
        """Return the label smoothing of training."""
        return self.recipe.training.label_smoothing

    @property
    def looked_at(self) -> Batch:
        """Return the sentences that the probes look at."""
        return probe_batch(self.recipe, self.data, sentences=SENTENCES)

    def model(self) -> Transformer:
        """Return the proxy as it is before its first update."""
        return prepared_model(self.recipe, self.data)

    def train(
        self,
        model: Transformer,
        watcher: Watcher,
        *,
        steps: int | None = None,
        at: Collection[int] | None = None,
    ) -> Trial:
        """Step `model` through the trial, or its first `steps` updates; `at` as in `take_steps`."""
        recipe = self.recipe
        settings = Settings(
            optimizer=recipe.optimizer,
            schedule=self.schedule,
            clip_norm=recipe.training.clip_norm,
            policies=parameter_policies(model),
            after_update=partial(follow_in_time, self.run / self.steps),
        )
        torch.manual_seed(recipe.training.seed)
        return take_steps(
            model,
            cycle(self.text),
            steps=steps or self.steps,
            loss=token_loss(label_smoothing=self.smoothing),
            settings=settings,
            recorder=watcher,
            at=at,
        )

    def described(self) -> dict[str, Any]:
        """Return what is trained, and for how long."""
        recipe, shape = self.recipe, self.recipe.model
        return {
            "updates": self.steps,
            "of": self.run,
            "warmup_steps": self.schedule.warmup_steps,
            "d_model": shape.d_model,
            "encoder_layers": shape.encoder_layers,
            "decoder_layers": shape.decoder_layers,
            "max_tokens": recipe.batching.max_tokens,
            "optimizer": recipe.optimizer.name,
            "lr": recipe.optimizer.lr,
            "seed": recipe.training.seed,
        }


def make_case(recipe: Recipe, data: PreparedData, *, steps: int) -> Case:
    """Return the proxy of a recipe for a trial of `steps` updates, or as many as the run has."""
    end = find_end(recipe, updates_per_epoch=make_loader(recipe, data).updates_per_epoch(0))
    run = run_length(recipe.schedule, updates=end.updates)
    steps = max(min(steps, run), LEAST_STEPS)
    longest = data.dataset("train").header.longest
    proxy = settled(proxy_recipe(recipe, longest=longest), data)
    return Case(
        recipe=proxy,
        data=data,
        schedule=compressed(proxy.schedule, run=run, steps=steps, optimizer=proxy.optimizer),
        steps=steps,
        run=run,
        text=list(islice(make_loader(proxy, data).updates(0), TEXT)),
    )


def settled(recipe: Recipe, data: PreparedData, report: Report | None = None) -> Recipe:
    """Return the recipe with what it leaves open decided, as before a run."""
    size = sized_model(recipe.model, data.tokenizers).vocab_size
    recipe = settle_model(recipe, vocab_size=size, report=report)
    return settle_clipping(recipe, report=report)


def prepared_model(recipe: Recipe, data: PreparedData) -> Transformer:
    """Return the recipe's model as it is before its first update."""
    model = build_model(recipe, data.tokenizers)
    loss = token_loss(label_smoothing=recipe.training.label_smoothing)
    if prepare := preparation(model, first_batches(make_loader(recipe, data), _CPU), loss=loss):
        prepare(model)
    return model
