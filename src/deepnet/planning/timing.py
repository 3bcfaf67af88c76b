"""How long an update of a deep model takes, from updates of a few of its layers at its full width.

The time of a step grows by the same amount with each layer, so that two depths of a stack give all others.
"""

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepnet.data.objectives import Batch
from deepnet.planning.rehearsal import Conditions
from deepnet.training.engine.choice import one_process_engine
from deepnet.training.engine.ranks import Ranks
from deepnet.training.engine.recompute import recomputing
from deepnet.training.loss import token_loss
from deepnet.training.optimization.averaging import MovingAverage
from deepnet.transformer.initialize import parameter_policies
from deepnet.transformer.models import Transformer

FEW, MORE = 2, 6
"""The layers of a stack that are timed, where it has as many."""
_ROUNDS = 3


class Depths(NamedTuple):
    """Layers of the encoder and of the decoder."""

    encoder: int
    decoder: int


class Seconds(NamedTuple):
    """What an update spends its time on."""

    passes: float
    """Both passes of one micro-batch."""
    step: float
    """The gradient's norm, the optimiser and the moving average."""


def timed_depths(depths: Depths) -> list[Depths]:
    """Return the depths to time: a shallow one, then a deeper one for each stack that is deeper."""
    base = Depths(min(depths.encoder, FEW), min(depths.decoder, FEW))
    deeper = [
        base._replace(encoder=min(depths.encoder, MORE)),
        base._replace(decoder=min(depths.decoder, MORE)),
    ]
    return [base, *(one for one in deeper if one != base)]


def extrapolated(timed: Mapping[Depths, Seconds], depths: Depths) -> Seconds:
    """Return the seconds of a model of these depths, from those of `timed_depths`, the shallow one first."""
    (base, shallow), *deeper = timed.items()
    passes, step = shallow
    for one, seconds in deeper:
        times = _times(base, one, depths)
        passes += max(seconds.passes - shallow.passes, 0.0) * times
        step += max(seconds.step - shallow.step, 0.0) * times
    return Seconds(passes, step)


def _times(base: Depths, deeper: Depths, depths: Depths) -> float:
    """Return how many times what one stack of `deeper` has more is missing from the base."""
    stack = 0 if deeper.encoder > base.encoder else 1
    return (depths[stack] - base[stack]) / (deeper[stack] - base[stack])


def time_updates(
    build: Callable[[Depths], Transformer],
    depths: Depths,
    batch: Batch,
    *,
    conditions: Conditions,
) -> Seconds:
    """Return what an update of a model of these depths takes, from a few updates of shallow ones.

    `build` makes the model of any depths. Each round times every depth in turn, and their median counts.
    """
    runs = {one: Trainee(build(one), batch, conditions) for one in timed_depths(depths)}
    for run in runs.values():
        run.update()  # the first one allocates
    rounds = [{one: run.update() for one, run in runs.items()} for _ in range(_ROUNDS)]
    return extrapolated(
        {one: Seconds(*map(median, zip(*(r[one] for r in rounds), strict=True))) for one in runs},
        depths,
    )


class Trainee:
    """A model with a micro-batch, and all that an update of it needs."""

    def __init__(self, model: Transformer, batch: Batch, conditions: Conditions) -> None:
        self._device, self._training = conditions.device, conditions.training
        self._batch = batch.to(self._device)
        self._blocks = [layer for stack in model.stacks() for layer in stack.layers]
        self._engine = one_process_engine(self._training)(
            model.to(self._device).train(),
            optimizer=conditions.optimizer,
            policies=parameter_policies(model),
            precision=conditions.precision,
            ranks=Ranks(self._device),
        )
        decay = self._training.ema_decay
        self._average = MovingAverage(self._engine.held, decay=decay) if decay else None

    def update(self) -> Seconds:
        """Compute one update of one micro-batch."""
        begun = self._clock()
        self._pass()
        passed = self._clock()
        self._step()
        return Seconds(passed - begun, self._clock() - passed)

    def _pass(self) -> None:
        compute = token_loss(label_smoothing=self._training.label_smoothing)

        def loss(module: nn.Module) -> Tensor:
            return compute(module, self._batch)

        self._engine.drop_gradients()
        with recomputing(self._engine.model, self._training, blocks=self._blocks):
            self._engine.add_gradients(loss, num_tokens=self._batch.num_tokens, sends=True)

    def _step(self) -> None:
        norm = torch.linalg.vector_norm(self._engine.measure_gradients())
        self._engine.step(norm=norm, clip_norm=self._training.clip_norm)
        if self._average:
            self._average.update(1)

    def _clock(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
