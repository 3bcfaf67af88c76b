"""A micro-batch and the conditions that it is planned under."""

from collections.abc import Callable

import pytest
import torch

from deepnet.data.objectives import Batch
from deepnet.planning.rehearsal import Conditions
from deepnet.training.config import OptimizerConfig, TrainingConfig
from deepnet.training.engine.precision import Precision

CPU = torch.device("cpu")


@pytest.fixture
def batch() -> Batch:
    """Return 4 sentences of up to 7 and 9 tokens of a vocabulary of 30."""
    source, target = torch.randint(2, 29, (4, 7)), torch.randint(2, 29, (4, 9))
    keep = torch.ones(4, 7, dtype=torch.bool)
    keep[1, 5:] = False
    return Batch(source, keep, target, target, num_tokens=36, num_source_tokens=26)


@pytest.fixture
def conditions() -> Callable[..., Conditions]:
    """Return a function (precision, accumulates, optimiser's keys, training's keys) -> conditions on a CPU."""

    def make(
        precision: str = "fp32",
        *,
        accumulates: bool = False,
        optimizer: dict | None = None,
        **training: object,
    ) -> Conditions:
        return Conditions(
            training=TrainingConfig(max_steps=3, **training),
            optimizer=OptimizerConfig(**(optimizer or {})),
            precision=Precision(precision, "cpu"),
            device=CPU,
            accumulates=accumulates,
        )

    return make
