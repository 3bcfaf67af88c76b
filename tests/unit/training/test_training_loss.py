"""The loss against its definition written out."""

import math

import pytest
import torch

from deepnet.data.loader import Batch
from deepnet.errors import DataError
from deepnet.training.engine.precision import Precision
from deepnet.training.loss import summed_cross_entropy, token_loss, validation_loss

PAD = 5  # of a vocabulary of 6; the logits cover ids 0 to 4


@pytest.fixture
def logits():
    return torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equals_the_definition_and_skips_padding(logits, smoothing):
    target = torch.tensor([[1, 4, 0], [2, PAD, PAD]])
    expected = 0.0
    for b, t in [(0, 0), (0, 1), (0, 2), (1, 0)]:
        p = torch.softmax(logits[b, t], 0)
        q = [smoothing / 5 + (1 - smoothing) * (i == target[b, t].item()) for i in range(5)]
        expected -= sum(q[i] * math.log(p[i].item()) for i in range(5))
    found = summed_cross_entropy(logits, target, label_smoothing=smoothing)
    assert found.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_is_computed_in_float32(logits, dtype):
    low, target = logits.to(dtype), torch.tensor([[1, 4, 0], [2, PAD, PAD]])
    found = summed_cross_entropy(low, target)
    assert found.dtype == torch.float32
    exact = summed_cross_entropy(low.double(), target)
    assert found.item() == pytest.approx(exact.item(), rel=1e-6)


def batch(logits, target):
    return Batch(logits, None, target, target, int((target != PAD).sum()), 0)


def test_validation_is_the_mean_over_all_tokens_not_over_batches(logits):
    model = torch.nn.Module()
    model.forward = lambda source, keep, target_in: source
    model.train()
    batches = [
        batch(logits[:1], torch.tensor([[1, 4, 0]])),
        batch(logits[1:], torch.tensor([[2, PAD, PAD]])),
    ]
    total = sum(token_loss(label_smoothing=0.0)(model, b).item() for b in batches)
    found = validation_loss(
        model, batches, device=torch.device("cpu"), precision=Precision("fp32", "cpu")
    )
    assert found == pytest.approx(total / 4, rel=1e-6)
    assert model.training


class Noisy(torch.nn.Module):
    """Logits of its input, through a linear map, and notes in which mode and type it was asked."""

    def __init__(self):
        super().__init__()
        self.map = torch.nn.Linear(5, 5)
        self.dropout = torch.nn.Dropout(0.5)
        self.seen = []

    def forward(self, source, keep, target_in):
        found = self.dropout(self.map(source))
        self.seen.append((self.training, found.dtype, found.requires_grad))
        return found


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_validation_is_in_evaluation_mode_and_precision_and_leaves_the_mode_alone(
    logits, training, name, dtype
):
    model = Noisy().train(training)
    batches = [batch(logits.float(), torch.tensor([[1, 4, 0], [2, PAD, PAD]]))]
    validation_loss(model, batches, device=torch.device("cpu"), precision=Precision(name, "cpu"))
    assert model.seen == [(False, dtype, False)]
    assert model.training is training
    assert model.dropout.training is training


def test_an_empty_validation_set_is_refused():
    with pytest.raises(DataError, match="no tokens to predict"):
        validation_loss(
            torch.nn.Identity(), [], device=torch.device("cpu"), precision=Precision("fp32", "cpu")
        )
