"""Faults, planted where faults arise: in an activation, its gradient, a batch of text, a learning rate."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from deepnet.data.objectives import Batch
from deepnet.training import loop, update
from deepnet.training.optimization.rate import set_rate
from deepnet.training.session import Session

FACTOR = 1e3
FAULTY = 150
"""The update, from 1, at which every fault begins."""
PATH = "encoder.layers.2.sublayers.ffn.branch.fc1"
PLACE = "encoder.3.ffn.fc1"
"""The same module in the words of an incident."""


def spoilt(x: Tensor) -> Tensor:
    """Return x with its first element not a number."""
    x = x.clone()
    x[(0,) * x.ndim] = torch.nan
    return x


def enlarged(x: Tensor) -> Tensor:
    """Return a thousand times x."""
    return x * FACTOR


@contextmanager
def planted(
    module: nn.Module, change: Callable[[Tensor], Tensor], *, backward: bool, once: bool = False
) -> Iterator[None]:
    """Change what a module returns, or the gradient of that, in the next pass or in all."""
    passes: list[None] = []

    def plant(_: nn.Module, args: Any, output: Any) -> Any:
        passes.append(None)
        if once and len(passes) > 1:
            return output
        first, *rest = output if isinstance(output, tuple) else (output,)
        if backward:
            if first.requires_grad:  # not where the probes look
                first.register_hook(change)
            return output
        return (change(first), *rest) if rest else change(first)

    hook = module.register_forward_hook(plant)
    try:
        yield
    finally:
        hook.remove()


@dataclass(frozen=True)
class Fault:
    """What goes wrong in some updates of a run, and whether it does so again when the run has gone back."""

    what: str
    updates: int = 1
    """How many in a row, from update 150 on."""
    inside: Callable[[nn.Module], AbstractContextManager[None]] | None = None
    """What stands inside the feed-forward of the encoder's third layer meanwhile."""
    text: Callable[[Batch], Batch] | None = None
    """What becomes of a batch."""
    tokens: int = 0
    """What the loss is divided by, where that is part of the fault."""
    rate: float = 1.0
    """Times the learning rate."""
    recurs: bool = False
    """Whether it belongs to the step of the run, and so comes again; else to the 150th update that is computed."""

    def strikes(self, *, computed: int, step: int) -> bool:
        """Return whether it stands in the update that is computed as the n-th, to make a step."""
        return 0 <= (step if self.recurs else computed) - FAULTY < self.updates

    def spoil(self, update: Any) -> Any:
        """Return an update with its text spoilt."""
        if self.text is None:
            return update
        batches = tuple(self.text(batch) for batch in update.batches)
        counted = sum(batch.num_tokens for batch in batches)
        return replace(update, batches=batches, num_tokens=self.tokens or counted)


@contextmanager
def struck_by(fault: Fault | None) -> Iterator[None]:
    """Let a fault stand in the runs that are trained meanwhile."""
    original, numbers = loop.run_update, count(1)

    def run(session: Session, batches: Any, **how: Any) -> Any:
        step = session.state.step + 1
        if fault is None or not fault.strikes(computed=next(numbers), step=step):
            return original(session, batches, **how)
        module = session.engine.model.get_submodule(PATH)
        faster = mock.patch.object(update, "set_rate", partial(_multiplied, fault.rate))
        with fault.inside(module) if fault.inside else nullcontext(), faster:
            return original(session, fault.spoil(batches), **how)

    with mock.patch.object(loop, "run_update", run):
        yield


def _multiplied(by: float, session: Session, seconds: float) -> float:
    """Set the rate of every group as ever, times a factor, and return the run's rate as it now is."""
    found = set_rate(session, seconds)
    for group in session.engine.optimizer.param_groups:
        group["lr"] *= by
    return found * by


def random_targets(batch: Batch) -> Batch:
    """Return the batch with any token in the place of each that is to be predicted."""
    pad, real = _real(batch)
    noise = torch.randint(1, pad, batch.target_out.shape, generator=_generator())
    return replace(batch, target_out=noise.where(real, batch.target_out))


def shuffled(batch: Batch) -> Batch:
    """Return the batch with the tokens of all its targets in another order, read and predicted alike."""
    _, real = _real(batch)
    tokens = batch.target_out[real]
    out = batch.target_out.clone()
    out[real] = tokens[torch.randperm(len(tokens), generator=_generator())]
    return replace(
        batch, target_in=torch.cat([_read(batch)[:, :1], out[:, :-1]], 1), target_out=out
    )


def repeated(batch: Batch) -> Batch:
    """Return the batch with its first pair in the place of every pair."""
    keep = batch.source_keep
    same = replace(
        batch,
        source=_first(batch.source),
        source_keep=None if keep is None else _first(keep),
        target_in=_first(_read(batch)),
        target_out=_first(batch.target_out),
    )
    return replace(same, num_tokens=int(_real(same)[1].sum()))


def _read(batch: Batch) -> Tensor:
    assert batch.target_in is not None, "a translation"
    return batch.target_in


def _real(batch: Batch) -> tuple[int, Tensor]:
    """Return the id of padding, from which every target starts, and where something is to be predicted."""
    pad = int(_read(batch)[0, 0])
    return pad, batch.target_out != pad


def _first(x: Tensor) -> Tensor:
    return x[:1].expand_as(x).contiguous()


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


FAULTS: dict[str, Fault] = {
    "activation NaN": Fault(
        "one NaN in what fc1 returns", inside=partial(planted, change=spoilt, backward=False)
    ),
    "activation x1000": Fault(
        "what fc1 returns a thousand times as large",
        inside=partial(planted, change=enlarged, backward=False),
    ),
    "gradient x1000": Fault(
        "the gradient of what fc1 returns a thousand times as large",
        inside=partial(planted, change=enlarged, backward=True),
    ),
    "miscounted noise": Fault(
        "random targets, the sum of their losses divided by one token",
        text=random_targets,
        tokens=1,
    ),
    "shuffled text": Fault(
        "ten updates whose target tokens stand in another order", updates=10, text=shuffled
    ),
    "repeated sentence": Fault(
        "ten updates of one pair in the place of all", updates=10, text=repeated
    ),
    "rate x200": Fault("three updates with 200 times the learning rate", updates=3, rate=200.0),
    "rate x200, recurring": Fault(
        "the same, again whenever the run comes to step 150", updates=3, rate=200.0, recurs=True
    ),
}
