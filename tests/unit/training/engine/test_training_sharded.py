"""What the sharded engine refuses, and what it does on one process; two processes: tests/properties."""

import pytest
import torch

from deepnet.errors import ConfigError
from deepnet.training.config import TrainingConfig
from deepnet.training.engine.precision import Precision
from deepnet.training.probing import Probing


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": {"name": "lamb"}}, "optimizer.name = 'lamb', which measures whole"),
        ({"optimizer": {"name": "adafactor"}}, "optimizer.name = 'adafactor', which measures"),
        ({"precision": Precision("fp16", "cpu")}, "training.precision = 'fp16'"),
        ({"offload": True}, "training.offload on a CPU"),
        ({"probing": Probing(1, lambda *_, **__: None)}, "probes.every = 0"),
    ],
)
def test_what_parts_of_matrices_cannot_do_is_refused_in_one_line(toy, given, message):
    with pytest.raises(ConfigError, match=message) as error:
        toy.train(engine="sharded", **given)
    assert "training.engine = 'sharded'" in str(error.value)
    assert "\n" not in str(error.value)


def test_offload_without_the_sharded_engine_has_no_effect_and_is_refused():
    with pytest.raises(ValueError, match="offload has no effect with engine = 'auto'"):
        TrainingConfig(max_steps=1, offload=True)


def test_one_process_trains_in_parts_what_it_trains_whole_with_dropout_and_recompute(toy):
    runs = []
    for engine in ("auto", "sharded"):
        model = toy.model(dropout=0.3)
        given = {"engine": engine, "recompute": True, "blocks": [model[0], model[3]]}
        _, _, run = toy.train(engine, model=model, **given)
        runs.append([(row["loss"], row["gradient_norm"]) for row in toy.records(run)])
    whole, parts = map(torch.tensor, runs)
    torch.testing.assert_close(parts, whole, rtol=1e-6, atol=0)
