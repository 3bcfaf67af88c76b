"""A validation in shares: broken off for all ranks by a signal at one, whole where each rank computes everything."""

from types import SimpleNamespace

import pytest
import torch

from deepnet.training.config import TrainingConfig
from deepnet.training.engine.base import Engine
from deepnet.training.engine.ranks import Ranks
from deepnet.training.validation import num_shares, taken_part_in


class BesideAnother(Ranks):
    """The first of two ranks; the other has found `other`."""

    def __init__(self, other):
        super().__init__(world_size=2)
        object.__setattr__(self, "other", other)

    def gather(self, value):
        return [value, self.other]


@pytest.mark.parametrize(
    ("mine", "other", "expected"),
    [(3, 4, [3, 4]), (0, 0, [0, 0]), (None, 4, None), (3, None, None)],
)
def test_a_signal_at_one_rank_breaks_the_validation_off_for_all(mine, other, expected):
    engine = SimpleNamespace(ranks=BesideAnother(other))
    found = Engine.evaluate(engine, lambda: mine, guarded=lambda compute: compute())
    assert found == expected


@pytest.mark.parametrize(
    ("engine", "rank", "asked"),
    [("auto", 0, True), ("auto", 1, False), ("sharded", 0, True), ("sharded", 1, True)],
)
def test_a_function_is_called_on_the_writer_or_where_each_holds_a_part(engine, rank, asked):
    called = []

    def validate(model, step):
        called.append(step)
        return {"loss": 2.0}

    training, ranks = TrainingConfig(max_steps=1, engine=engine), Ranks(rank=rank, world_size=2)
    validation = taken_part_in(validate, training=training, ranks=ranks)
    found = validation.measure(torch.nn.Identity(), 7)
    assert called == ([7] if asked else [])
    assert num_shares(training, ranks) == (1 if engine == "sharded" else 2)
    if asked:
        assert validation.combine([found, {}]) == {"loss": 2.0}
