"""The guard: tells from every update, before the weights take it, whether the run is in trouble, and what to do.

Four kinds of trouble, told apart by thresholds that were fixed on real text (docs/guard.md):

    nan        the loss or the gradient is not finite
    spike      an update stands out: its loss, its gradient norm, the input of a norm, or the gradient of the queries
               over that of the keys of an attention leaves the range of the last 50
    explosion  ten updates in a row stand out, the median of 50 losses is above its lowest by as much as losses differed
               then, or one update changed the output by as much as there was of it
    plateau    for ten updates almost no gradient has reached some layer of the last stack: the loss levels off at word
               frequencies, DeepNet's "spurious local optimum" (arXiv 2203.00555, section 3)

It decides from numbers that are the same on every rank, and by nothing else. No limit has a unit: each is made of what
the run itself has shown, so that a loss of any scale, or with any constant added, is judged the same.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deepnet.probes.place import Place
from deepnet.training.guard.config import GOES_BACK, Action, GuardConfig
from deepnet.training.guard.history import COMPARED, REMEMBERED, History
from deepnet.training.guard.signals import Signals, Watched
from deepnet.training.guard.signs import (
    Sign,
    not_finite,
    replaced_output,
    smallest_share,
    standing_out,
    staying_high,
)
from deepnet.training.guard.trouble import Kind, blame, describe

SETTLED = 50
"""Updates that a checkpoint must have outlived to be gone back to: trouble shows some updates after it began."""
SUSTAINED = 10
"""Updates in a row that make a sign more than an accident."""
_FALLEN = 0.05
"""Part of all that the loss has fallen which is its spread at least: a loss that has come to rest has none."""
_ROUNDING = 1e-5
"""Part of the loss which is its spread at least."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is wrong with an update and what is to be done."""

    kind: Kind
    action: Action
    where: Place | None
    """The layer and site that went first, and the role where it is known."""
    message: str
    sign: Sign
    """What was measured, and the limit that it passed."""
    found_by: str
    """How the place was found."""
    is_new: bool = True
    """False while an incident goes on that has been reported."""

    @property
    def applies(self) -> bool:
        """Whether the weights take the update all the same."""
        return self.action == "warn"


@dataclass
class GuardMemory:
    """What the guard remembers besides the last updates; a checkpoint saves it."""

    lr_factor: float = 1.0
    warmup_factor: float = 1.0
    num_incidents: int = 0
    num_recoveries: int = 0
    skipping: str | None = None
    """The kind of trouble for which the latest update was skipped."""
    num_outliers: int = 0
    """Updates in a row, up to the latest, that stood out."""
    num_vanishing: int = 0
    """Updates in a row, up to the latest, whose gradient vanished in some layer."""
    lowest_loss: float | None = None
    """The lowest median of 50 losses."""
    lowest_spread: float | None = None
    """The spread of those 50."""
    highest_loss: float | None = None
    """The highest median of 50 losses."""
    last_seen: dict[str, int] = field(default_factory=dict)
    """The latest step at which a kind of trouble was seen."""
    good_steps: list[int] = field(default_factory=list)
    """Steps of the checkpoints that were not saved because of an interruption."""


class Guard:
    """Judges each update by the ones before it, the last 50 of which it keeps."""

    def __init__(
        self,
        config: GuardConfig,
        *,
        parameters: Sequence[Watched],
        norm_inputs: Sequence[Place],
        norm_sources: Mapping[Place, Place] | None = None,
    ) -> None:
        self.config = config
        self.history = History(
            parameters=parameters, norm_inputs=norm_inputs, norm_sources=norm_sources
        )
        self.memory = GuardMemory()

    def judge(self, signals: Signals) -> Verdict | None:
        """Return what is wrong with an update that is not applied yet, None where nothing is; remember it."""
        trouble = self._trouble(signals)
        verdict = None if trouble is None else self._verdict(*trouble, signals)
        is_skipped = verdict is not None and verdict.action == "skip"
        self.memory.skipping = verdict.kind if verdict is not None and is_skipped else None
        is_outlier = verdict is not None and not verdict.applies
        self.history.append(signals, is_outlier=is_outlier)
        self._remember_loss()
        return verdict

    def judge_model_update(
        self, step: int, step_update: float, *, layers: Mapping[Place, float] | None = None
    ) -> Verdict | None:
        """Return what is wrong with an applied update that changed the output by that part of what it was.

        `layers` says the same of the layers' outputs, where this process has measured them. Nothing is wrong with the
        first update: what an untrained model puts out is no loss, and runs without warm-up replace it and learn.
        """
        limit = self.config.largest_step_update
        if step_update <= limit or step == 1:
            return None
        action = self._allowed(self.config.explosion)
        if action == "off" or (self._note_seen("explosion", step) and action == "warn"):
            return None
        sign = replaced_output(step_update, limit=limit, layers=layers or {})
        return Verdict(
            kind="explosion",
            action=action,
            where=sign.place,
            message=f"one update changed the model's output by {step_update:.2g} times what it was "
            f"(guard.largest_step_update = {limit:g})",
            sign=sign,
            found_by="the first layer, in forward order, that this update changed by more than the limit",
        )

    def back_to(self, step: int) -> int:
        """Return the step of the checkpoint to go back to from trouble at `step`."""
        good = self.memory.good_steps
        return max((one for one in good if one <= step - SETTLED), default=good[0])

    def keep_needed(self, step: int) -> set[int]:
        """Forget the good checkpoints that no trouble after `step` needs, and return the steps of the others."""
        good = self.memory.good_steps
        oldest = self.back_to(step) if good else step
        self.memory.good_steps = [one for one in good if one >= oldest and self.config.goes_back]
        return set(self.memory.good_steps)

    @property
    def lacks_way_back(self) -> bool:
        """Whether the run may have to go back and has no checkpoint for it yet."""
        return self.config.goes_back and not self.memory.good_steps

    def recover(self, verdict: Verdict, earlier: GuardMemory, *, step: int) -> None:
        """Go on from the memory of the checkpoint of `step`, but for what the run has learnt since from trouble."""
        memory, action = self.memory, verdict.action
        memory.good_steps = [good for good in earlier.good_steps if good <= step]
        memory.num_incidents = earlier.num_incidents
        memory.num_recoveries = earlier.num_recoveries + 1
        lowers, lengthens = action == "lower_lr", action == "lengthen_warmup"
        memory.lr_factor = earlier.lr_factor * (self.config.lr_factor if lowers else 1.0)
        memory.warmup_factor = earlier.warmup_factor * (
            self.config.warmup_factor if lengthens else 1.0
        )

    def _trouble(self, signals: Signals) -> tuple[Kind, Sign] | None:
        memory = self.memory
        found = not_finite(signals) or self._standing_out(signals)
        memory.num_outliers = memory.num_outliers + 1 if found else 0
        share = smallest_share(signals, self.history, limit=self.config.vanishing_ratio)
        vanishes = share is not None and share.value < self.config.vanishing_ratio
        memory.num_vanishing = memory.num_vanishing + 1 if vanishes else 0
        if found and memory.num_outliers < SUSTAINED:
            return ("spike" if signals.is_finite else "nan"), found
        if high := found or self._high_level():
            return "explosion", high
        return ("plateau", share) if share and memory.num_vanishing >= SUSTAINED else None

    def _verdict(self, kind: Kind, sign: Sign, signals: Signals) -> Verdict | None:
        action = self.config.action(kind)
        if not signals.is_finite and action in ("off", "warn"):
            action = "stop"  # an explosion of updates that are not finite
        action = self._allowed(action)
        if action == "off" or (self._note_seen(kind, signals.step) and action == "warn"):
            return None
        blamed = blame(sign, signals, self.history)
        return Verdict(
            kind=kind,
            action=action,
            where=blamed.place,
            message=describe(sign, signals, self.history),
            sign=sign,
            found_by=blamed.found_by,
            is_new=action != "skip" or self.memory.skipping != kind,
        )

    def _allowed(self, action: Action) -> Action:
        exhausted = self.memory.num_recoveries >= self.config.max_recoveries
        return "stop" if action in GOES_BACK and exhausted else action

    def _note_seen(self, kind: Kind, step: int) -> bool:
        """Note that a kind of trouble is seen, and return whether it was within the last 50 steps."""
        earlier = self.memory.last_seen.get(kind)
        self.memory.last_seen[kind] = step
        return earlier is not None and step - earlier < REMEMBERED

    def _standing_out(self, signals: Signals) -> Sign | None:
        if len(self.history.normal()) < COMPARED:
            return None
        config = self.config
        return standing_out(
            signals,
            self.history,
            ratio=config.spike_ratio,
            rise=config.spike_rise,
            spread=self._spread(),
        )

    def _spread(self) -> float:
        """Return how far the losses of the last updates lie apart, or at least a part of what the run has shown."""
        first, last, highest = (
            self.memory.highest_loss,
            self.memory.lowest_loss,
            self.history.highest(),
        )
        fallen = 0.0 if first is None or last is None else first - last
        return max(highest.loss_spread, _FALLEN * fallen, _ROUNDING * abs(highest.loss))

    def _high_level(self) -> Sign | None:
        lowest, latest = self.memory.lowest_loss, self._latest_loss()
        if lowest is None or latest is None:
            return None
        spread = self.memory.lowest_spread or self._spread()
        return staying_high(latest, lowest=lowest, rise=self.config.spike_rise, spread=spread)

    def _latest_loss(self) -> float | None:
        losses = [signals.loss for signals in self.history.normal()]
        if len(self.history.all()) < REMEMBERED or not losses:
            return None
        return statistics.median(losses)

    def _remember_loss(self) -> None:
        latest, memory = self._latest_loss(), self.memory
        if latest is None:
            return
        if memory.lowest_loss is None or latest < memory.lowest_loss:
            memory.lowest_loss, memory.lowest_spread = latest, self._spread()
        if memory.highest_loss is None or latest > memory.highest_loss:
            memory.highest_loss = latest
