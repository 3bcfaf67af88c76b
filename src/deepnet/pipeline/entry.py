"""What `deepnet.train` and `deepnet.train_model` do: a run from three lines of Python."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from deepnet.config import Section, build, override
from deepnet.errors import ConfigError
from deepnet.pipeline.preparing import CACHE
from deepnet.pipeline.recipe import Recipe, load_recipe
from deepnet.pipeline.run import FinishedRun, choose_device, run_recipe
from deepnet.record import RunFolder
from deepnet.training.batches import Batch, ListedUpdate, ListedUpdates
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from deepnet.training.distributed import Ranks
from deepnet.training.loop import Sink, TrainingResult, Validate, train_loop
from deepnet.training.progress import ProgressDisplay
from deepnet.training.tensorboard import TensorBoardSink
from deepnet.training.update import Loss


class LoopSettings(Section):
    """The sections of a recipe that training a model of one's own reads."""

    training: TrainingConfig
    """How long to train, how to check on it and what to keep."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """What turns gradients into updates."""
    schedule: ScheduleConfig = ScheduleConfig()
    """The learning rate at each update."""


@dataclass(frozen=True)
class _Scaled:
    """A batch as it is, whose loss """


def train(
    recipe: Recipe | str | Path,
    *,
    out: str | Path,
    overrides: Iterable[str] = (),
    resume: bool = False,
    start_from: str | Path | None = None,
    device: str = "auto",
    cache: Path = CACHE,
    tensorboard: bool = False,
    console: Console | None = None,
) -> FinishedRun:
    """Train a recipe, as `deepnet train` does: text in, a scored model in the folder `out`.

    `recipe` is a TOML file, a run folder whose recipe is taken, or a recipe; `overrides` are "section.key=value".
    `resume` goes on with the run in `out`, `start_from` is a bundle to fine-tune. Progress goes to `console`.
    Raises ConfigError, DataError, CheckpointError or DivergenceError; what was saved before stays.
    """
