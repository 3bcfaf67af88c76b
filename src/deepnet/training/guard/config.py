"""The [guard] section: what is done about each kind of trouble, and what counts as trouble."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from deepnet.config import Section
from deepnet.training.guard.trouble import Kind

Lasting = Literal["off", "warn", "roll_back", "lower_lr", "lengthen_warmup", "stop"]
NotFinite = Literal["off", "skip", "roll_back", "lower_lr", "lengthen_warmup", "stop"]
Action = Literal["off", "warn", "skip", "roll_back", "lower_lr", "lengthen_warmup", "stop"]
GOES_BACK: tuple[Action, ...] = ("roll_back", "lower_lr", "lengthen_warmup")


class GuardConfig(Section):
    """What to do about trouble: off, warn, skip the update, go back to a good checkpoint and past the data, or stop.

    lower_lr and lengthen_warmup go back as roll_back does, and train on with a lower rate or a longer warm-up.
    """

    spike: Action = "warn"
    """An update that stands out by its loss, its gradient norm, the input of a norm, or queries apart from keys."""
    explosion: Lasting = "warn"
    """Ten updates in a row that stand out, a loss that stays high, or an update that replaced the output."""
    plateau: Lasting = "warn"
    """A layer that almost no gradient reaches any more: the loss will level off."""
    nan: NotFinite = "stop"
    """A loss or gradient that is not finite; off, where the three others are: it ends the run when that next records,
    validates or saves, and until then no update waits for the device."""
    spike_ratio: Annotated[float, Field(gt=1)] = 4.0
    """A gradient norm, or an input of a norm, this many times the largest of the last 50 updates stands out, and the
    gradient of an attention's queries over that of its keys, or the reverse, the square of that."""
    spike_rise: Annotated[float, Field(gt=0)] = 1.0
    """A loss stands out this many spreads (highest less lowest of the last 50) above the highest, and is an explosion
    where the median of 50 is as far above its lowest."""
    vanishing_ratio: Annotated[float, Field(gt=0, lt=1)] = 1e-4
    """The gradient vanishes where the norm of a layer of the last stack is less than this part of the largest there."""
    largest_step_update: Annotated[float, Field(gt=0)] = 1.0
    """Change of the output by one update, relative to the output before, that is an explosion; read by the probes after
    the first update, where there is nothing to lose yet."""
    lr_factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """What lower_lr multiplies the learning rate by."""
    warmup_factor: Annotated[float, Field(gt=1)] = 2.0
    """What lengthen_warmup multiplies the warm-up by, from 100 updates where it is shorter."""
    max_recoveries: Annotated[int, Field(ge=1)] = 5
    """Times that a run may go back; at the next it stops."""

    @model_validator(mode="after")
    def _nothing_overlooked(self) -> Self:
        if self.nan == "off" and self.watches:
            raise ValueError(
                "nan = 'off' needs spike, explosion and plateau to be off, too: to judge them every update is read; "
                "set nan = 'stop', or all four to off"
            )
        return self

    @property
    def watches(self) -> bool:
        """Whether any trouble is looked for."""
        return any(action != "off" for action in self._actions().values())

    def action(self, kind: Kind) -> Action:
        """Return what is to be done about a kind of trouble."""
        return self._actions()[kind]

    @property
    def goes_back(self) -> bool:
        """Whether some trouble sends the run back to a checkpoint."""
        return any(action in GOES_BACK for action in self._actions().values())

    @property
    def skips(self) -> bool:
        """Whether some trouble keeps an update from the weights, without going back."""
        return "skip" in self._actions().values()

    def _actions(self) -> dict[Kind, Action]:
        return {
            "nan": self.nan,
            "spike": self.spike,
            "explosion": self.explosion,
            "plateau": self.plateau,
        }
