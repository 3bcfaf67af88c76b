"""A module whose scheduled scales follow the number of updates, which alone is saved."""

from typing import Any

import torch
from torch import Tensor, nn

from deepnet.transformer.materialise import Materialised, reset_parts
from deepnet.transformer.scales import ScheduledScale


class Stepped(Materialised):
    """What has scheduled scales: `advance` sets them, loading a state sets them to the saved step's."""

    scheme_step: Tensor

    def count_updates(self) -> None:
        """Start at step 0; to be called once, when the module is made."""
        self.register_buffer("scheme_step", torch.zeros(1, dtype=torch.int64))
        self.register_load_state_dict_post_hook(_take_up)  # type: ignore[no-untyped-call]

    def reset_parameters(self) -> None:
        """Make all parameters and buffers as they are at step 0, but for matrices that are drawn by role."""
        reset_parts(self)
        self.advance(0)
        self.is_empty = False

    def advance(self, step: int) -> None:
        """Set every scheduled scale to its value after `step` optimiser updates."""
        self.scheme_step.fill_(step)
        for module in self.stepped().modules():
            if isinstance(module, ScheduledScale):
                module.advance(step)

    def stepped(self) -> nn.Module:
        """Return the module whose scales follow the step: this one, unless it stands for another."""
        return self


def _take_up(module: Stepped, keys: Any) -> None:
    module.note_loaded(keys.missing_keys)
    if not module.is_empty:
        module.advance(int(module.scheme_step))
