"""Every scheme steps in the backward pass as it does after it: bit for bit, with layers computed again in segments."""

import cases
import pytest
import torch

from deepnet.testing.scheme_models import (
    case_architectures,
    case_model,
    example_batch,
    example_loss,
)
from deepnet.training.config import OptimizerConfig, TrainingConfig
from deepnet.training.engine.base import Engine
from deepnet.training.engine.in_backward import InBackward
from deepnet.training.engine.precision import Precision
from deepnet.training.engine.ranks import Ranks
from deepnet.training.engine.recompute import recomputing
from deepnet.transformer.initialize import parameter_policies

AGAIN = TrainingConfig(max_steps=1, recompute=True, recompute_segment=0)


def trained(kind, case, training):
    """Return the parameters after three updates as the loop does them."""
    architecture = case_architectures(case)[0]
    torch.manual_seed(1)
    model = case_model(case, architecture, layers=3, dropout=0.1).double()
    engine = kind(
        model.train(),
        optimizer=OptimizerConfig(name="adamw", lr=1e-2, weight_decay=0.1),
        policies=parameter_policies(model),
        precision=Precision("fp32", "cpu"),
        ranks=Ranks(),
    )
    for step in range(3):
        engine.drop_gradients()
        torch.manual_seed(step)
        with recomputing(model, training, blocks=()):
            engine.add_gradients(
                lambda module: example_loss(module, example_batch(architecture)),
                num_tokens=1,
                sends=True,
            )
        engine.step(norm=torch.zeros(()), clip_norm=0.0)
        model.scheme.after_update(model)
        model.scheme.advance(model, step + 1)
    return dict(model.named_parameters())


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: f"{case.name}{dict(case.options)}")
def test_the_weights_are_the_same(case):
    expected = trained(Engine, case, TrainingConfig(max_steps=1))
    for training in (TrainingConfig(max_steps=1), AGAIN):
        found = trained(InBackward, case, training)
        for name, parameter in expected.items():
            assert torch.equal(found[name], parameter), name
