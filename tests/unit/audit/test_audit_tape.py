"""A recorded run is computed again from changed values, through what is written in place as well."""

import pytest
import torch
from torch import nn

from deepnet.audit.examine import record


class InPlace(nn.Module):
    """3 x with some of it overwritten through a view, and read through another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 3.0
        y.view(2, 2, 4)[:, 1].add_(x.view(2, 2, 4)[:, 0])
        return y.t() + 0.0


@pytest.mark.parametrize("factor", [1.0, -2.0])
def test_a_change_arrives_behind_what_is_written_in_place(factor):
    x = torch.arange(16.0, dtype=torch.float64).view(4, 4)
    tape = record(InPlace(), (x,), torch.float64)
    start = next(value for value in tape.operations[0].inputs if value.is_input)
    changed = factor * x + 1.0
    again = tape.replay(start, changed, tape.returned[0])
    assert torch.equal(again, InPlace()(changed.clone()))
