"""An encoder-decoder learns what needs its attention to work: to copy a sequence, and to reverse one.

Half a minute on one thread for both; with seeds 1 to 3 every accuracy was at least 0.999 by greedy search.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor

from deepnet.decoding.interface import DecodingConfig
from deepnet.decoding.search import search
from deepnet.pipeline.run import follow_updates
from deepnet.record import RunFolder
from deepnet.schemes.catalogue import load_scheme
from deepnet.training.batches import ListedUpdate
from deepnet.training.config import OptimizerConfig, ScheduleConfig, TrainingConfig
from deepnet.training.loop import train_loop
from deepnet.training.loss import token_loss
from deepnet.transformer.initialize import parameter_policies
from deepnet.transformer.models import Transformer, TransformerConfig

EOS, FIRST, PAD = 0, 2, 12
LENGTHS = range(4, 9)
UPDATES = 600

Task = Callable[[Tensor], Tensor]


def draw(length: int, rows: int, generator: torch.Generator) -> Tensor:
    return torch.randint(FIRST, PAD, (rows, length), generator=generator)


def ended(sequences: Tensor) -> Tensor:
    return torch.nn.functional.pad(sequences, (0, 1), value=EOS)


@dataclass
class Batch:
    """Sequences of one length, so that nothing is padding."""

    source: Tensor
    target_in: Tensor
    target_out: Tensor
    source_keep: None = None

    @property
    def num_tokens(self) -> int:
        return self.target_out.numel()

    def to(self, device: torch.device) -> "Batch":
        return self


def make_batch(sequences: Tensor, task: Task) -> Batch:
    target = ended(task(sequences))
    start = torch.nn.functional.pad(target[:, :-1], (1, 0), value=PAD)
    return Batch(ended(sequences), start, target)


class RandomUpdates:
    """New sequences at every update, all of one length."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def updates(self, epoch: int, start: int = 0) -> Iterator[ListedUpdate]:
        generator = torch.Generator().manual_seed(1)
        for index in range(UPDATES):
            length = LENGTHS[index % len(LENGTHS)]
            batch = make_batch(draw(length, 64, generator), self.task)
            if index >= start:
                yield ListedUpdate((batch,), batch.num_tokens)

    def updates_per_epoch(self, epoch: int) -> int:
        return UPDATES


def trained(task: Task, folder) -> Transformer:
    config = TransformerConfig(
        encoder_layers=4,
        decoder_layers=4,
        d_model=32,
        ffn_dim=64,
        num_heads=4,
        vocab_size=PAD + 1,
        dropout=0.0,
    )
    model = Transformer(config, load_scheme("deepnorm"))
    train_loop(
        model,
        loader=RandomUpdates(task),
        loss=token_loss(label_smoothing=0.0),
        run=RunFolder.create(folder, recipe={}),
        training=TrainingConfig(max_steps=UPDATES, save_every=0, log_every=50),
        optimizer=OptimizerConfig(lr=4e-3),
        schedule=ScheduleConfig(name="linear", warmup_steps=50),
        after_update=follow_updates(model.scheme),
        policies=parameter_policies(model),
    )
    return model


def accuracy(model: Transformer, task: Task, decoding: DecodingConfig) -> float:
    """Return the share of tokens, the end included, that decoding gets right on new sequences."""
    generator, right, total = torch.Generator().manual_seed(2), 0, 0
    for length in LENGTHS:
        sequences = draw(length, 40, generator)
        outputs = search(model, ended(sequences), None, config=decoding)
        for found, wanted in zip(outputs, task(sequences).tolist(), strict=True):
            pairs = zip([*found[0].tokens, EOS], [*wanted, EOS], strict=False)
            right += sum(a == b for a, b in pairs)
            total += max(len(found[0].tokens), length) + 1
    return right / total


@pytest.mark.parametrize(
    "task", [Tensor.clone, partial(torch.flip, dims=[1])], ids=["copy", "reverse"]
)
def test_a_deepnorm_model_learns(task, tmp_path):
    model = trained(task, tmp_path / "run")
    assert accuracy(model, task, DecodingConfig(beam_size=1)) >= 0.99
    # a beam that stops at 4 finished outputs may stop at 4 improbable early endings
    assert accuracy(model, task, DecodingConfig(beam_size=4, early_stopping=False)) >= 0.99
