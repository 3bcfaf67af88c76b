"""A module whose scheduled scales follow the number of updates, which alone is saved."""

import torch
from torch import Tensor, nn

from deepnet.transformer.scales import ScheduledScale


class Stepped(nn.Module):
    """What has scheduled scales: `advance` sets them, loading a state sets them to the saved step's."""

    scheme_step: Tensor

    def count_updates(self) -> None:
        """Start at step 0; to be called once, when the module is made."""
        self.register_buffer("scheme_step", torch.zeros(1, dtype=torch.int64))
        self.register_load_state_dict_post_hook(_advance_to_saved_step)  # type: ignore[no-untyped-call]

    def advance(self, step: int) -> None:
        """Set every scheduled scale to its value after `step` optimiser updates."""
        self.scheme_step.fill_(step)
        for module in self.stepped().modules():
            if isinstance(module, ScheduledScale):
                module.advance(step)

    def stepped(self) -> nn.Module:
        """Return the module whose scales follow the step: this one, unless it stands for another."""
        return self


def _advance_to_saved_step(module: Stepped, _: object) -> None:
    module.advance(int(module.scheme_step))
