"""What the guard is compared with: nothing, clipping, and a skip at six standard deviations."""

import math
import statistics
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from deepnet.errors import DivergenceError
from deepnet.probes.place import Place
from deepnet.training import trained
from deepnet.training.guard.history import COMPARED
from deepnet.training.guard.judge import SUSTAINED, Guard, Verdict
from deepnet.training.guard.signals import Signals
from deepnet.training.guard.signs import Sign, parted
from guard_loss import FIRST


class SixSigma(Guard):
    """Skips an update whose loss or gradient norm is more than six standard deviations above the mean of the last 128.

    What it skips is not among those. As OLMo-core's SkipStepOptimizer, but from update 20 on, not 64, and that it ends
    the run where it has skipped as many in a row as it remembers: nothing would let it take one again.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._taken: deque[tuple[float, float]] = deque(maxlen=128)
        self._skipped = 0

    def judge(self, signals: Signals) -> Verdict | None:
        """Return a skip where the update is not finite or stands out, None where it is taken."""
        now = (signals.loss, signals.gradient_norm)
        if len(self._taken) >= FIRST - 1:
            for value, earlier in zip(now, zip(*self._taken, strict=True), strict=True):
                limit = statistics.fmean(earlier) + 6 * statistics.stdev(earlier)
                if not value <= limit:
                    return self._skip(value, limit)
        elif not signals.is_finite:
            return self._skip(math.nan, math.inf)
        self._taken.append(now)
        self._skipped = 0
        return None

    def judge_model_update(
        self, step: int, step_update: float, *, layers: Mapping[Place, float] | None = None
    ) -> Verdict | None:
        """Say nothing: it looks at loss and gradient norm alone."""
        return None

    def _skip(self, value: float, limit: float) -> Verdict:
        self._skipped += 1
        if self._skipped == self._taken.maxlen:
            raise DivergenceError(f"{self._skipped} updates skipped in a row")
        sign = Sign(name="loss", value=value, limit=limit, measure="loss or gradient norm")
        return Verdict(
            kind="spike",
            action="skip",
            where=None,
            message="six standard deviations",
            sign=sign,
            found_by="",
            is_new=False,
        )


class Measured(Guard):
    """The guard, which notes how near each of its numbers came to its limit: the largest parts of the limits."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = ("norm_input", "loss", "gradient_norm", "query_key", "loss_level", "step_update")
        self.nearest = dict.fromkeys(names, 0.0)
        self._shares: deque[float] = deque(maxlen=SUSTAINED)
        self.smallest_share = 1.0
        """The least part of the last stack's largest gradient that a layer did not exceed for ten updates."""

    def judge(self, signals: Signals) -> Verdict | None:
        """Judge as ever, and note."""
        self._shares.append(min(self.history.layer_shares(signals).values(), default=1.0))
        if len(self._shares) == SUSTAINED:
            self.smallest_share = min(self.smallest_share, max(self._shares))
        if signals.is_finite and len(self.history.normal()) >= COMPARED:
            self._note(signals)
        return super().judge(signals)

    def judge_model_update(
        self, step: int, step_update: float, *, layers: Mapping[Place, float] | None = None
    ) -> Verdict | None:
        """Judge as ever, and note."""
        self._keep("step_update", step_update / self.config.largest_step_update)
        return super().judge_model_update(step, step_update, layers=layers)

    def near(self) -> dict[str, Any]:
        """Return what was noted, as JSON holds it."""
        return {"nearest": self.nearest, "smallest_share": self.smallest_share}

    def _note(self, signals: Signals) -> None:
        highest, config = self.history.highest(), self.config
        inputs = signals.norm_inputs / highest.norm_inputs
        self._keep("norm_input", float(inputs.max()) / config.spike_ratio if len(inputs) else 0.0)
        gradient = signals.gradient_norm / highest.gradient_norm
        self._keep("gradient_norm", gradient / config.spike_ratio)
        times = parted(signals, self.history)
        self._keep("query_key", float(times.max()) / config.spike_ratio**2 if len(times) else 0.0)
        rise = (signals.loss - highest.loss) / self._spread()
        self._keep("loss", rise / config.spike_rise)
        latest, lowest = self._latest_loss(), self.memory.lowest_loss
        if latest is not None and lowest is not None:
            spread = self.memory.lowest_spread or self._spread()
            self._keep("loss_level", (latest - lowest) / spread / config.spike_rise)

    def _keep(self, name: str, value: float) -> None:
        if math.isfinite(value):
            self.nearest[name] = max(self.nearest[name], value)


@dataclass(frozen=True)
class Treatment:
    """What is done about trouble in a run: settings of its recipe, and the guard that judges."""

    what: str
    settings: tuple[str, ...] = ()
    guard: type[Guard] = Guard


OFF = ("guard.spike=off", "guard.explosion=off", "guard.plateau=off")
BACK = ("guard.spike=skip", "guard.nan=skip")
TREATMENTS: dict[str, Treatment] = {
    "none": Treatment("nothing, but that it stops where a number is not finite", OFF),
    "clip": Treatment("the gradient clipped at 1, nothing else", (*OFF, "training.clip_norm=1")),
    "six sigma": Treatment("a skip at six standard deviations, nothing else", OFF, SixSigma),
    "guard": Treatment("the guard as it is by default: it warns", (), Measured),
    "guard, back": Treatment(
        "spikes and NaN skipped, back to a good checkpoint at an explosion",
        (*BACK, "guard.explosion=roll_back"),
    ),
    "guard, lower": Treatment(
        "the same, and the learning rate halved each time it goes back",
        (*BACK, "guard.explosion=lower_lr"),
    ),
}


@contextmanager
def judged_by(kind: type[Guard]) -> Iterator[list[Guard]]:
    """Let a guard of that kind judge the runs that are trained meanwhile; yield those that were made."""
    made: list[Guard] = []

    def make(*args: Any, **kwargs: Any) -> Guard:
        made.append(kind(*args, **kwargs))
        return made[-1]

    with mock.patch.object(trained, "Guard", make):
        yield made
