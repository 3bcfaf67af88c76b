"""The peak of a run, made of what its passes and its step hold, by hand."""

from dataclasses import replace

import pytest
import torch

from deepnet.planning.memory import plan_memory
from deepnet.planning.rehearsal import Rehearsal

PARAMETERS = {"matrix": torch.zeros(100, 50), "bias": torch.zeros(100)}
STATES = {"exp_avg.matrix": torch.zeros(100, 50), "step.matrix": torch.zeros(())}
REHEARSAL = Rehearsal(
    weights=20_400,
    gradients=20_400,
    trained=("matrix", "bias"),
    activations=90_000,
    most={"weights": 20_400, "gradients": 400, "activations": 95_000},
    largest=30_000,
    made_forward=200_000,
    forward_flops=0,
    backward_flops=0,
    attention_flops=0,
)


def planned(conditions, rehearsal=REHEARSAL, *, process=0):
    return plan_memory(
        rehearsal, parameters=PARAMETERS, optimizer=STATES, conditions=conditions, process=process
    )


def test_the_peak_of_passes_has_what_stays_besides(conditions):
    found = planned(conditions(ema_decay=0.9), process=1000)
    assert found.moment == "passes"
    numbers = 20_400 + 400 + 95_000 + (20_000 + 4) + 20_400
    assert sum(found.at_peak.values()) == numbers
    assert found.needed == numbers + found.objects + 1000
    assert found.peak == found.needed + found.heap
    assert found.kinds() == {
        "weights": 20_400, "gradients": 20_400, "optimizer": 20_004, "average": 20_400, "activations": 90_000,
        "objects": found.objects, "heap": found.heap, "process": 1000,
    }  # fmt: skip


def test_the_peak_is_in_the_step_where_activations_are_few(conditions):
    few = replace(REHEARSAL, most={"weights": 20_400, "activations": 5_000})
    found = planned(conditions(optimizer={"name": "sgd", "weight_decay": 0.1}), few)
    assert found.moment == "step"
    largest = 20_000  # the gradient of the matrix with its decay
    assert sum(found.at_peak.values()) == 20_400 + 20_400 + 20_004 + largest


def test_a_step_in_the_backward_pass_holds_one_gradient_at_a_time(conditions):
    few = replace(REHEARSAL, most={"weights": 20_400, "activations": 5_000})
    found = planned(conditions(optimizer={"name": "sgd"}, step_in_backward=True), few)
    assert found.moment == "step"
    assert sum(found.at_peak.values()) == 20_400 + 20_000 + 20_004  # the gradient of the matrix
    assert found.heap == pytest.approx(1.5 * planned(conditions(), few).heap, abs=1)


def test_recompute_leaves_a_place_for_the_logits_in_the_heap(conditions):
    plain, again = (planned(conditions(recompute=r)).heap for r in (False, True))
    assert again - plain == REHEARSAL.largest
    assert 0 < plain < REHEARSAL.made_forward


@pytest.mark.parametrize("kind", ["objects", "heap", "process"])
def test_a_card_holds_numbers_alone(conditions, kind):
    on_card = replace(conditions(), device=torch.device("cuda"))
    assert planned(on_card, process=1000).kinds()[kind] == 0
    assert planned(conditions(), process=1000).kinds()[kind] > 0
