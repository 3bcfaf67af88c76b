"""What a training run records: right, small, the same after a resumption, and without effect on the training."""

import json
import math

import pytest
import torch

from deepnet import ModelUpdate
from deepnet.errors import CheckpointError
from deepnet.pipeline.measuring import UpdatePrediction
from deepnet.probes.config import ProbeConfig
from deepnet.probes.place import Place, rounded
from deepnet.probes.recorder import Recorder
from deepnet.theory.live_model import copy_matrices, predicted_update

KEYS = [
    "step", "gradient_norm", "norm_input", "branch_ratio", "similarity", "sparsity", "attention_entropy",
    "token_mean_energy", "logit_scale", "model_update", "update_ratio", "step_update",
]  # fmt: skip


def train(model, batch, *, updates, recorder=None, every=1):
    """Return the records of some updates by Adam, with dropout."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    records = []
    for step in range(1, updates + 1):
        torch.manual_seed(step)
        model.train()
        optimizer.zero_grad()
        model(*batch).square().mean().backward()
        due = recorder is not None and step % every == 0
        if due:
            recorder.before_update()
        optimizer.step()
        if due:
            records.append(recorder.after_update(step))
    return records


def forward_on(batch):
    return lambda model: model(*batch)


@pytest.fixture
def batch(sentences):
    return sentences


def test_the_record(make_model, batch):
    model = make_model(dropout=0.1)
    (record,) = train(model, batch, updates=1, recorder=Recorder(model, forward_on(batch)))
    assert list(record) == KEYS
    assert record["step"] == 1
    assert {key: len(values) for key, values in record["norm_input"].items()} == {
        f"{stack}.{site}": 2
        for stack, sites in (("encoder", ("self", "ffn")), ("decoder", ("self", "cross", "ffn")))
        for site in sites
    }
    assert record["similarity"]["encoder"][0] is None
    roles = {
        f"encoder.{role}"
        for role in ("self.q", "self.k", "self.v", "self.out", "ffn.fc1", "ffn.fc2")
    }
    assert {key for key in record["gradient_norm"] if key.startswith("encoder")} == roles
    assert set(record["update_ratio"]) == set(record["gradient_norm"])
    assert len(record["gradient_norm"]["embedding"]) == 1
    assert set(record["model_update"]) == {"encoder", "decoder", "output"}
    assert record["model_update"] == record["step_update"]  # the first step is all there is
    for probe in KEYS[1:]:
        for values in record[probe].values():
            assert all(value == float(f"{value:.5g}") for value in values if value is not None)


def test_movements_are_those_of_the_outputs(make_model, batch):
    """Over three updates, against ModelUpdate on the same modules."""
    model = make_model(dropout=0.1)
    layers = [f"{stack}.layers.{n}" for stack in ("encoder", "decoder") for n in (0, 1)]
    recorder, by_hand = Recorder(model, forward_on(batch)), ModelUpdate(model, batch, layers=layers)
    train(model, batch, updates=2, recorder=recorder)
    by_hand.measure()
    record = train(model, batch, updates=1, recorder=recorder)[-1]
    step = by_hand.measure_step()
    total = by_hand.measure()
    for key, movement in (("step_update", step), ("model_update", total)):
        assert record[key]["output"][0] == pytest.approx(movement[""].relative, rel=1e-4)
        for stack in ("encoder", "decoder"):
            expected = [movement[f"{stack}.layers.{n}"].relative for n in (0, 1)]
            assert record[key][stack] == pytest.approx(expected, rel=1e-4)
    assert total[""].relative > 0.0


def test_a_resumed_recorder_compares_with_the_same_start(make_model, batch):
    model = make_model(dropout=0.1)
    recorder = Recorder(model, forward_on(batch), prediction=UpdatePrediction(model))
    train(model, batch, updates=2, recorder=recorder)
    first = {name: tensor.clone() for name, tensor in recorder.first_outputs().items()}
    again = Recorder(
        model, forward_on(batch), prediction=UpdatePrediction(model, first=first), first=first
    )
    uninterrupted, resumed = recorder.measure(), again.measure()
    assert resumed == uninterrupted
    assert resumed["model_update"]["output"][0] > 0.0
    assert resumed["predicted_update"]["output"][0] > 0.0
    started = Recorder(model, forward_on(batch)).measure()
    assert started["model_update"]["output"] == [0.0]


def test_first_outputs_of_another_batch_are_refused(make_model, batch):
    model = make_model()
    first = Recorder(model, forward_on(batch)).first_outputs()
    fewer = [None if part is None else part[:2] for part in batch]
    with pytest.raises(CheckpointError, match=r"no 'encoder.1' of shape \(2, 5, 16\)"):
        Recorder(model, forward_on(fewer), first=first)
    with pytest.raises(CheckpointError, match=r"other probe sentences"):
        Recorder(make_model(decoder_layers=3), forward_on(batch), first=first)


def test_training_is_the_same_with_and_without(make_model, batch):
    weights, random_states = [], []
    for watched in (False, True):
        torch.manual_seed(7)
        model = make_model(dropout=0.2)
        recorder = Recorder(model, forward_on(batch)) if watched else None
        train(model, batch, updates=4, recorder=recorder, every=2)
        assert model.training
        weights.append(model.state_dict())
        random_states.append(torch.get_rng_state())
    assert torch.equal(*random_states)
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_skipped_update_leaves_no_copy_behind(make_model, batch):
    model = make_model()
    recorder = Recorder(model, forward_on(batch))
    recorder.before_update()
    (record,) = train(model, batch, updates=1, recorder=recorder)
    assert all(value > 0 for values in record["update_ratio"].values() for value in values)


def test_what_is_not_finite_is_null(make_model, batch):
    model = make_model()
    recorder = Recorder(model, forward_on(batch))
    with torch.no_grad():
        model.encoder.layers[1].sublayers["ffn"].branch.fc1.weight[0, 0] = math.nan
    record = recorder.measure()
    assert record["norm_input"]["encoder.ffn"][1] is None
    assert record["norm_input"]["encoder.ffn"][0] > 0
    assert record["model_update"]["output"] == [None]
    json.dumps(record, allow_nan=False)


def test_the_prediction_is_the_theorems_relative_to_the_first_output(make_model, batch):
    model = make_model("deepnorm")
    before = copy_matrices(model)
    recorder = Recorder(model, forward_on(batch), prediction=UpdatePrediction(model))
    start = recorder.first_outputs()["decoder.2"]
    train(model, batch, updates=1, recorder=recorder)
    expected = predicted_update(model, before) / float(start.square().mean().sqrt())
    found = recorder.measure()["predicted_update"]
    assert found == {"output": [pytest.approx(expected, rel=1e-4)]}
    assert float(start.square().mean().sqrt()) == pytest.approx(1.0, rel=1e-4)


def test_a_record_of_a_thousand_layers_each_stays_small(make_model, batch):
    """Every list grows by one number of at most 13 characters per layer: -1.2345e-123 needs 12, and a space."""
    sizes = []
    for layers in (2, 3):
        model = make_model(encoder_layers=layers, decoder_layers=layers)
        recorder = Recorder(model, forward_on(batch), prediction=UpdatePrediction(model))
        (record,) = train(model, batch, updates=1, recorder=recorder)
        lists = [v for name in KEYS[1:] for v in record[name].values()]
        sizes.append(sum(map(len, lists)))
    per_layer = sizes[1] - sizes[0]
    # gradients and updates by role; five, five, two, two, three, twice five and two, two, two
    assert per_layer == 2 * 16 + 33
    assert 1000 * per_layer * 13 < 900_000


def test_the_longest_number_of_a_record():
    assert len(json.dumps(rounded(-1.23456789e-123))) + 1 <= 13
    assert rounded(math.inf) is None
    assert rounded(123456.7) == 123460.0


def test_settings():
    assert (ProbeConfig().every, ProbeConfig().sentences) == (100, 4)


def test_hugging_face_models_are_recorded_too(zoo):
    model = zoo.bert()
    inputs = zoo.inputs(model)
    recorder = Recorder(model, lambda model: model(**inputs).logits)
    model(**inputs).logits.square().mean().backward()
    recorder.before_update()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    record = recorder.after_update(1)
    assert list(record) == KEYS
    assert record["model_update"]["encoder"][1] > 0
    assert str(Place("encoder", 2)) in recorder.first_outputs()
