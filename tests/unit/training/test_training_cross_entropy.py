"""The loss against torch's own cross-entropy, value and gradient."""

import pytest
import torch
import torch.nn.functional as F

from deepnet.training.cross_entropy import summed_cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_it_equals_torchs(smoothing):
    logits = torch.randn(3, 4, 11, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 11, (3, 4))
    target[0, 2:] = 11  # padding
    ours = summed_cross_entropy(logits, target, label_smoothing=smoothing)
    theirs = F.cross_entropy(
        logits.flatten(0, 1),
        target.flatten(),
        ignore_index=11,
        label_smoothing=smoothing,
        reduction="sum",
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=0)
    mine, reference = (torch.autograd.grad(2.5 * loss, logits)[0] for loss in (ours, theirs))
    torch.testing.assert_close(mine, reference, rtol=0, atol=1e-14)
    assert mine[0, 2:].abs().max() == 0


def test_huge_logits_do_not_overflow():
    logits = torch.full((1, 1, 5), 1e4)
    assert summed_cross_entropy(logits, torch.tensor([[2]])).item() == pytest.approx(
        1.6094379, abs=1e-2
    )
