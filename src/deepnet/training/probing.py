"""The probes of a training run: read at its first update and at every K-th, on the writing rank."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from deepnet.bundle import read_tensors, write_tensors
from deepnet.errors import DeepNetError
from deepnet.probes.place import OUTPUT, Place
from deepnet.probes.recorder import Recorder
from deepnet.record import RunFolder, append_jsonl
from deepnet.training.engine.memory import memory_shortage_explained
from deepnet.training.engine.ranks import Ranks

_PROBING = "while the probes measured the model (fewer: probes.sentences; none: probes.every = 0)"


@dataclass(frozen=True)
class Probing:
    """How often a model is measured, and by what."""

    every: int
    """Updates from one reading to the next."""
    recorder: Callable[..., Recorder]
    """(model, first=what an earlier session saw of its first weights) -> recorder; called on the writer alone."""


class Probes:
    """Reads the probes around the updates whose turn it is; without `probing` it does nothing."""

    def __init__(
        self, probing: Probing | None, *, model: nn.Module, run: RunFolder, ranks: Ranks
    ) -> None:
        self._probing = probing
        self._model = model
        self._run = run
        self._ranks = ranks
        self._recorder: Recorder | None = None
        self.latest: Mapping[str, Any] = {}
        """The latest reading; empty on other ranks."""

    def begin(self, *, resumed: bool) -> None:
        """Look at the model's weights, or take what an earlier session saw of the first ones."""
        if self._probing is None or not self._ranks.is_writer:
            return
        path = self._run.probe_start
        first = read_tensors(path) if resumed and path.exists() else None
        with memory_shortage_explained(_PROBING):
            self._recorder = self._probing.recorder(self._model, first=first)
        if first is None:
            write_tensors(path, self._recorder.first_outputs())

    def before_step(self, step: int) -> None:
        """Read the gradient of the update that makes step `step`."""
        if self._recorder and self._is_due(step):
            with memory_shortage_explained(_PROBING):
                self._recorder.before_update()

    def after_step(self, step: int) -> float | None:
        """Record what the update did and return, on every rank, the relative model update of this one step.

        None where no reading is due, infinity where the output is not finite.
        """
        if not self._is_due(step):
            return None
        return self._ranks.from_writer(partial(self._record, step))

    def _record(self, step: int) -> float:
        assert self._recorder is not None, "the writer has begun"
        with memory_shortage_explained(_PROBING):
            record = self.latest = self._recorder.after_update(step)
        append_jsonl(self._run.probes_path, record)
        return _step_update(record)

    def look(self) -> dict[str, Any]:
        """Return what the probes read now, gradients included; nothing on other ranks, or where nothing is probed."""
        if self._recorder is None:
            return {}
        try:
            with memory_shortage_explained(_PROBING):
                return {"gradient_norm": self._recorder.gradients(), **self._recorder.measure()}
        except DeepNetError as error:  # an incident is written down all the same
            return {"failed": str(error)}

    def changes(self) -> dict[Place, float]:
        """Return by how much the last reading's update changed each layer's output, in parts of what it was."""
        rows = self.latest.get("step_update", {})
        return {
            Place(stack, number): math.inf if change is None else change
            for stack, changes in rows.items()
            if stack != str(OUTPUT)
            for number, change in enumerate(changes, start=1)
        }

    def _is_due(self, step: int) -> bool:
        return self._probing is not None and (step == 1 or step % self._probing.every == 0)


def _step_update(record: Mapping[str, Any]) -> float:
    """Return the relative change of the output; infinite where that is not finite, 0 where there was no output yet."""
    (moved,), (scale,) = record["step_update"]["output"], record["logit_scale"]["output"]
    if moved is None:
        return torch.inf if scale is None else 0.0
    return float(moved)
