"""What the training text's thread pins arrives on the device unchanged."""

import pytest
import torch

from deepnet.data.objectives import Batch

pytestmark = pytest.mark.gpu


def test_what_is_pinned_goes_to_the_device_unchanged(device):
    if device.type != "cuda":
        pytest.skip("memory is pinned for CUDA alone")
    tensor = torch.arange(6).reshape(2, 3)
    batch = Batch(tensor, None, tensor, tensor, 6, 6).pinned()
    assert batch.source.is_pinned()
    assert torch.equal(batch.to(device).target_in.cpu(), tensor)
