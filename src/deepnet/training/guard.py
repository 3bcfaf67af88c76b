"""The guard: tells from every update, before the weights take it, whether the run is in trouble, and what to do.

Four kinds of trouble, told apart by thresholds that were fixed on real text (docs/guard.md):

    nan        the loss or the gradient is not finite
    spike      an update stands out: its loss, its gradient norm or the input of a norm leaves the range of the last 50
    explosion  ten updates in a row stand out, the median of 50 losses is 1.5 nats above its lowest, or one update
               changed the output by as much as there was of it
    plateau    for ten updates almost no gradient has reached some layer of the last stack: the loss levels off at word
               frequencies, DeepNet's "spurious local optimum" (arXiv 2203.00555, section 3)

It decides from numbers that are the same on every rank, and by nothing else.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from deepnet.config import Section
from deepnet.probes.place import Place
from deepnet.training.history import REMEMBERED, History
from deepnet.training.signals import Signals, Watched
from deepnet.training.trouble import Kind, describe, find_place

Lasting = Literal["off", "warn", "roll_back", "lower_lr", "lengthen_warmup", "stop"]
NotFinite = Literal["skip", "roll_back", "lower_lr", "lengthen_warmup", "stop"]
Action = Literal["off", "warn", "skip", "roll_back", "lower_lr", "lengthen_warmup", "stop"]
GOES_BACK: tuple[Action, ...] = ("roll_back", "lower_lr", "lengthen_warmup")

SETTLED = 50
"""Updates that a checkpoint must have outlived to be gone back to: trouble shows some updates after it began."""
SUSTAINED = 10
"""Updates in a row that make a sign more than an accident."""
_FIRST = 16
"""Updates before the first comparison: a run's first ones differ among themselves."""


class GuardConfig(Section):
    """What to do about trouble: off, warn, skip the update, go back to a good checkpoint and past the data, or stop.

    lower_lr and lengthen_warmup go back as roll_back does, and train on with a lower rate or a longer warm-up.
    """

    spike: Action = "warn"
    """An update that stands out by its loss, its gradient norm or the input of a norm."""
    explosion: Lasting = "warn"
    """Ten updates in a row that stand out, a loss that stays high, or an update that replaced the output."""
    plateau: Lasting = "warn"
    """A layer that almost no gradient reaches any more: the loss will level off."""
    nan: NotFinite = "stop"
    """A loss or gradient that is not finite."""
    spike_ratio: Annotated[float, Field(gt=1)] = 4.0
    """A gradient norm, or an input of a norm, this many times the largest of the last 50 updates stands out."""
    spike_rise: Annotated[float, Field(gt=0)] = 1.5
    """Nats of loss above the highest of the last 50 updates that stand out, above the lowest that are an explosion."""
    vanishing_ratio: Annotated[float, Field(gt=0, lt=1)] = 1e-4
    """The gradient vanishes where the norm of a layer of the last stack is less than this part of the largest there."""
    largest_step_update: Annotated[float, Field(gt=0)] = 1.0
    """Change of the output by one update, relative to the output before, that is an explosion; read by the probes."""
    lr_factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """What lower_lr multiplies the learning rate by."""
    warmup_factor: Annotated[float, Field(gt=1)] = 2.0
    """What lengthen_warmup multiplies the warm-up by, from 100 updates where it is shorter."""
    max_recoveries: Annotated[int, Field(ge=1)] = 5
    """Times that a run may go back; at the next it stops."""

    def action(self, kind: Kind) -> Action:
        """Return what is to be done about a kind of trouble."""
        actions: dict[Kind, Action] = {
            "nan": self.nan,
            "spike": self.spike,
            "explosion": self.explosion,
            "plateau": self.plateau,
        }
        return actions[kind]

    @property
    def goes_back(self) -> bool:
        """Whether some trouble sends the run back to a checkpoint."""
        return any(
            self.action(kind) in GOES_BACK for kind in ("nan", "spike", "explosion", "plateau")
        )


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What is wrong with an update and what is to be done."""

    kind: Kind
    action: Action
    where: Place | None
    """The layer and site that went first, and the role where it is known."""
    message: str
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
    last_seen: dict[str, int] = field(default_factory=dict)
    """The latest step at which a kind of trouble was seen."""
    good_steps: list[int] = field(default_factory=list)
    """Steps of the checkpoints that were not saved because of an interruption."""


class Guard:
    """Judges each update by the ones before it, the last 50 of which it keeps."""

    def __init__(
        self, config: GuardConfig, *, parameters: Sequence[Watched], norm_inputs: Sequence[Place]
    ) -> None:
        self.config = config
        self.history = History(parameters=parameters, norm_inputs=norm_inputs)
        self.memory = GuardMemory()

    def judge(self, signals: Signals) -> Verdict | None:
        """Return what is wrong with an update that is not applied yet, None where nothing is; remember it."""
        kind = self._kind(signals)
        verdict = None if kind is None else self._verdict(kind, signals)
        is_skipped = verdict is not None and verdict.action == "skip"
        self.memory.skipping = kind if is_skipped else None
        is_outlier = verdict is not None and not verdict.applies
        self.history.append(signals, is_outlier=is_outlier)
        self._remember_loss()
        return verdict

    def judge_model_update(self, step: int, step_update: float) -> Verdict | None:
        """Return what is wrong with an applied update that changed the output by that part of what it was."""
        if step_update <= self.config.largest_step_update:
            return None
        action = self._allowed(self.config.explosion)
        if action == "off" or (self._note_seen("explosion", step) and action == "warn"):
            return None
        message = (
            f"one update changed the model's output by {step_update:.2g} times what it was "
            f"(guard.largest_step_update = {self.config.largest_step_update:g})"
        )
        return Verdict(kind="explosion", action=action, where=None, message=message)

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

    def _kind(self, signals: Signals) -> Kind | None:
        memory = self.memory
        stands_out = not signals.is_finite or self._stands_out(signals)
        memory.num_outliers = memory.num_outliers + 1 if stands_out else 0
        shares = self.history.layer_shares(signals).values()
        vanishes = any(share < self.config.vanishing_ratio for share in shares)
        memory.num_vanishing = memory.num_vanishing + 1 if vanishes else 0
        if 0 < memory.num_outliers < SUSTAINED:
            return "spike" if signals.is_finite else "nan"
        if stands_out or self._is_high():
            return "explosion"
        return "plateau" if memory.num_vanishing >= SUSTAINED else None

    def _verdict(self, kind: Kind, signals: Signals) -> Verdict | None:
        action = self.config.action(kind)
        if not signals.is_finite and action in ("off", "warn"):
            action = "stop"  # an explosion of updates that are not finite
        action = self._allowed(action)
        if action == "off" or (self._note_seen(kind, signals.step) and action == "warn"):
            return None
        return Verdict(
            kind=kind,
            action=action,
            where=find_place(kind, signals, self.history),
            message=describe(kind, signals, self.history),
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

    def _stands_out(self, signals: Signals) -> bool:
        if len(self.history.normal()) < _FIRST:
            return False
        config, highest = self.config, self.history.highest()
        return (
            signals.loss > highest.loss + config.spike_rise
            or signals.gradient_norm > highest.gradient_norm * config.spike_ratio
            or bool((signals.norm_inputs > highest.norm_inputs * config.spike_ratio).any())
        )

    def _is_high(self) -> bool:
        lowest, latest = self.memory.lowest_loss, self._latest_loss()
        return (
            lowest is not None and latest is not None and latest > lowest + self.config.spike_rise
        )

    def _latest_loss(self) -> float | None:
        if len(self.history.all()) < REMEMBERED:
            return None
        return statistics.median(signals.loss for signals in self.history.normal())

    def _remember_loss(self) -> None:
        latest, lowest = self._latest_loss(), self.memory.lowest_loss
        if latest is not None:
            self.memory.lowest_loss = latest if lowest is None else min(lowest, latest)
