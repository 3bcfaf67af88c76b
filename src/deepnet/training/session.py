"""One call of the loop: what is trained, on what, by which plan, and where it is written down."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from deepnet.errors import ConfigError
from deepnet.probes.norm_input import NormInputs
from deepnet.record import RunFolder
from deepnet.training.batches import Updates
from deepnet.training.checkpoint.folder import latest_checkpoint
from deepnet.training.config import TrainingConfig
from deepnet.training.engine.base import Engine
from deepnet.training.engine.memory import memory_shortage_explained
from deepnet.training.engine.ranks import Ranks
from deepnet.training.engine.recompute import list_chains
from deepnet.training.plan import Plan
from deepnet.training.probing import Probes, Probing
from deepnet.training.state import TrainingState, Unread
from deepnet.training.stopwatch import Stopwatch
from deepnet.training.trained import Trained
from deepnet.training.validation import Validate, Validation

Loss = Callable[[nn.Module, Any], Tensor]
"""(model, batch) -> the loss summed over the batch's target tokens, a scalar."""
AfterUpdate = Callable[[nn.Module, int], None]
"""(model, updates done) -> None, called after each update: what a scheme does to the weights or to its schedule."""
Prepare = Callable[[nn.Module], None]
"""(model on its device) -> None, called on every rank before a run's first update; rank 0's result counts."""
Sink = Callable[[Mapping[str, Any]], None]
"""Takes each record of metrics.jsonl as it is written, such as the display."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """What the loop and its parts share; nothing of it is held anywhere else."""

    trained: Trained
    plan: Plan
    loader: Updates
    loss: Loss
    after_update: AfterUpdate | None
    validation: Validation | None
    norm_inputs: NormInputs
    probes: Probes
    run: RunFolder
    sinks: Sequence[Sink]
    on_incident: Sequence[Sink]
    settings: Mapping[str, Any]
    """What a resumed run must not change."""
    watch: Stopwatch
    unread: Unread = field(default_factory=Unread)
    """What the updates showed since it was last looked at, where the guard is off."""

    @property
    def engine(self) -> Engine:
        """Return what runs the model."""
        return self.trained.engine

    @property
    def ranks(self) -> Ranks:
        """Return the processes that train together."""
        return self.trained.engine.ranks

    @property
    def state(self) -> TrainingState:
        """Return where the run is."""
        return self.trained.state


def refuse_what_has_no_effect(
    training: TrainingConfig,
    *,
    model: nn.Module,
    validate: Validate | Validation | None,
    blocks: Sequence[nn.Module],
) -> None:
    """Raise ConfigError for a setting that needs what the caller has not given."""
    needed_for = {
        "recompute": (training.recompute, bool(blocks), "blocks to recompute"),
        "recompute_segment": (
            training.recompute_segment != 1,
            bool(list_chains(model)),
            "model of ours, whose layers are known to follow each other",
        ),
        "compile": (training.compile == "blocks", bool(blocks), "blocks to compile"),
        "validate_every": (training.validate_every, bool(validate), "function `validate`"),
        "keep_best": (training.keep_best != "loss", bool(validate), "function `validate`"),
    }
    for key, (is_set, is_there, what) in needed_for.items():
        if is_set and not is_there:
            raise ConfigError(f"training.{key} is set, but the caller gives no {what}")


def refuse_probes_of_parts(training: TrainingConfig, probing: Probing | None) -> None:
    """Raise ConfigError where one process would have to measure a model of which each holds a part."""
    if probing and training.engine == "sharded":
        raise ConfigError(
            "the probes measure a whole model on one process, and training.engine = 'sharded' has none; set "
            "probes.every = 0, and run `deepnet probe` on its checkpoints"
        )


def earlier_checkpoint(folder: Path, *, resume: bool) -> Path | None:
    """Return the checkpoint to go on from; raises ConfigError where there is one and nothing is to be resumed."""
    checkpoint = latest_checkpoint(folder)
    if checkpoint and not resume:
        raise ConfigError(f"{folder} holds checkpoints of another run; resume it or choose another")
    return checkpoint


def make_ready(model: nn.Module, *, ranks: Ranks, prepare: Prepare | None) -> None:
    """Put the model on its device, prepare it, and make it the same on all ranks."""
    model.to(ranks.device)
    if prepare:
        with memory_shortage_explained("while the model was prepared, before step 1"):
            prepare(model)
    ranks.make_equal(model)
    model.train()
