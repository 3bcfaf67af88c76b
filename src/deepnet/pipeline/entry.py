"""What `deepnet.train` and `deepnet.train_model` do: a run, shown as it goes, from a few lines of Python."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import model_validator
from rich.console import Console
from torch import nn

from deepnet.adapt.groups import PolicyRow, carries_scheme, chosen_policies, divided
from deepnet.config import Section, build
from deepnet.errors import ConfigError
from deepnet.pipeline.beginning import preparation
from deepnet.pipeline.devices import choose_device
from deepnet.pipeline.preparing import CACHE
from deepnet.pipeline.recipe import Recipe, load_recipe
from deepnet.pipeline.run import FinishedRun, follow_updates, run_recipe
from deepnet.pipeline.settling import settle_precision
from deepnet.probes.config import ProbeConfig
from deepnet.probes.listening import output_in
from deepnet.probes.recorder import Recorder
from deepnet.record import RunFolder
from deepnet.schemes.catalogue import TrustCode
from deepnet.training.batches import Batch, ListedUpdate, ListedUpdates
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from deepnet.training.engine.precision import Precision, resolve_precision
from deepnet.training.engine.ranks import Ranks, started_processes
from deepnet.training.guard.config import GuardConfig
from deepnet.training.loop import TrainingResult, train_loop
from deepnet.training.probing import Probing
from deepnet.training.session import Loss, Sink
from deepnet.training.sinks.progress import ProgressDisplay, format_incident
from deepnet.training.sinks.tensorboard import TensorBoardSink
from deepnet.training.validation import Validate
from deepnet.transformer.models import Transformer

_ONLY_IN_RECIPES = {
    "label_smoothing": "the loss is your own",
    "average_last": "no bundle is made of a model of your own",
}


class LoopSettings(Section):
    """The sections of a recipe that a model of one's own is trained by.

    A key that works on a recipe's own loss or bundle only is refused here.
    """

    training: TrainingConfig
    """How long to train, how to check on it and what to keep."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """What turns gradients into updates."""
    schedule: ScheduleConfig = ScheduleConfig()
    """The learning rate at each update."""
    guard: GuardConfig = GuardConfig()
    """What is done when training is in trouble."""
    probes: ProbeConfig = ProbeConfig()
    """What is measured on the way, on the first batch; nothing unless it is given."""

    @model_validator(mode="after")
    def _nothing_ignored(self) -> "LoopSettings":
        for key, reason in _ONLY_IN_RECIPES.items():
            if key in self.training.model_fields_set:
                raise ValueError(f"training.{key} has no effect here: {reason}; leave it out")
        if "sentences" in self.probes.model_fields_set:
            raise ValueError(
                "probes.sentences has no effect here: the probes look at a whole batch"
            )
        return self


def train(
    recipe: Recipe | str | Path,
    *,
    out: str | Path,
    overrides: Iterable[str] = (),
    resume: bool = False,
    start_from: str | Path | None = None,
    device: str = "auto",
    cache: Path = CACHE,
    trust_code: TrustCode = (),
    tensorboard: bool = False,
    console: Console | None = None,
) -> FinishedRun:
    """Train a recipe as `deepnet train` does: text in, a scored model in the folder `out`.

    `recipe` is a TOML file, a run folder whose recipe is taken, the name of a shipped recipe (`deepnet recipes`), or a
    recipe; `overrides` are "section.key=value".
    `resume` goes on with the run in `out`; `start_from` is a run or bundle to fine-tune, and `trust_code` names the
    classes "module:Class" that it may bring. Raises ConfigError, DataError, CheckpointError or DivergenceError; what
    was saved before stays.
    """
    if resume and start_from:
        raise ConfigError("a resumed run has its own weights; leave out 'resume' or 'start_from'")
    if isinstance(recipe, Recipe):
        if overrides:
            raise ConfigError("'overrides' change a recipe file; this recipe is already checked")
    else:
        recipe = load_recipe(recipe, overrides)
    console = console or Console(quiet=not is_writer())
    with _shown(console, Path(out), tensorboard=tensorboard) as sinks:
        return run_recipe(
            recipe,
            out=out,
            resume=resume,
            start_from=start_from,
            device=device,
            cache=cache,
            trust_code=trust_code,
            report=partial(console.print, markup=False, highlight=False, soft_wrap=True),
            sinks=sinks,
        )


def train_model(
    model: nn.Module,
    *,
    batches: Sequence[Batch],
    loss: Loss,
    out: str | Path,
    settings: Mapping[str, Any],
    count: Callable[[Any], int] | None = None,
    validate: Validate | None = None,
    resume: bool = False,
    device: str = "auto",
    tensorboard: bool = False,
) -> TrainingResult:
    """Train any model on batches and a loss of one's own, one update per batch, with everything a recipe's run has.

    `loss(model, batch)` is divided by `count(batch)`, by default 1: return a mean, or a sum and count its tokens.
    `settings` are a recipe's sections training, optimizer, schedule, guard and probes. A batch needs `to(device)`
    alone, as a tensor has; all are gone through in order, epoch after epoch. The scheme of a model of ours prepares
    itself on them. One process only; for anything else call `deepnet.training.loop.train_loop`.
    Raises ConfigError, CheckpointError or DivergenceError; what was saved before stays.
    """
    _refuse_several_processes()
    on, console = choose_device(device), Console()
    checked = _settled(build(LoopSettings, settings), out if resume else None, on)
    dump = checked.model_dump(mode="json", exclude={"training": set(_ONLY_IN_RECIPES)})
    ours = model if isinstance(model, Transformer) else None
    precision = resolve_precision(checked.training.precision, device=on)
    moved = (batch.to(on) for batch in batches)
    with (
        RunFolder.locked(out, recipe=dump, resume=resume) as run,
        _shown(console, run.path, tensorboard=tensorboard) as sinks,
    ):
        return train_loop(
            model,
            loader=ListedUpdates([ListedUpdate((b,), count(b) if count else 1) for b in batches]),
            loss=loss,
            run=run,
            training=checked.training,
            optimizer=checked.optimizer,
            schedule=checked.schedule,
            validate=validate,
            prepare=preparation(ours, moved, loss=loss) if ours else None,
            after_update=follow_updates(ours.scheme) if ours else None,
            policies=policies_of(model, checked.optimizer),
            blocks=[layer for stack in ours.stacks() for layer in stack.layers] if ours else (),
            precision=precision,
            ranks=Ranks(on),
            sinks=sinks,
            on_incident=[lambda incident: console.print(format_incident(incident), markup=False)],
            guard=checked.guard,
            probing=_probing(model, checked, batches, loss, precision, on),
            resume=resume,
            on_resume=partial(run.describe, recipe=dump),
        )


def _settled(
    settings: LoopSettings, resumed: str | Path | None, device: torch.device
) -> LoopSettings:
    """Return the settings with the precision that the resumed run was begun in, or that of the device."""
    recorded = RunFolder.open(resumed).read_recipe()["recipe"] if resumed else {}
    training = settle_precision(settings.training, device=device, recorded=recorded.get("training"))
    return settings.model_copy(update={"training": training})


def policies_of(model: nn.Module, optimizer: OptimizerConfig) -> list[PolicyRow] | None:
    """Return the multipliers of a model that carries a scheme, with its matrices told apart where Muon takes them."""
    if not carries_scheme(model):
        return None
    return divided(model) if optimizer.name == "muon" else chosen_policies(model)


def _probing(
    model: nn.Module,
    settings: LoopSettings,
    batches: Sequence[Batch],
    loss: Loss,
    precision: Precision,
    device: torch.device,
) -> Probing | None:
    """Return how a model of one's own is measured on its first batch, None where that was not asked for."""
    asked = "probes" in settings.model_fields_set and settings.probes.every
    if not asked or not batches:
        return None
    batch = batches[0].to(device)
    recorder = partial(
        Recorder,
        forward=lambda model: output_in(model, lambda: loss(model, batch)),
        autocast=precision.autocast,
    )
    return Probing(settings.probes.every, recorder)


def _refuse_several_processes() -> None:
    if started_processes() > 1:
        raise ConfigError(
            f"torchrun started {started_processes()} processes, but 'train_model' runs in one: its updates are "
            "one batch each. Call deepnet.training.loop.train_loop inside deepnet.training.engine.ranks.joined_ranks, "
            "with a loader that deals the batches of an update to ranks"
        )


def is_writer() -> bool:
    """Return whether this process is the one of those torchrun started that shows and writes."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def _shown(console: Console, run: Path, *, tensorboard: bool) -> Iterator[list[Sink]]:
    """Yield the sinks of a run: the display, and TensorBoard's files where asked for."""
    with ExitStack() as stack:
        sinks: list[Sink] = [stack.enter_context(ProgressDisplay(console))]
        if tensorboard:
            sinks.append(stack.enter_context(TensorBoardSink(run / "tensorboard")))
        yield sinks
