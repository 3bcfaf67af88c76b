"""Training on the device: precisions, the scaler of fp16, exact resume, recompute, the guard and what it costs."""

import warnings

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from deepnet.record import read_jsonl
from deepnet.training.guard.config import GuardConfig
from deepnet.training.loss import token_loss

pytestmark = pytest.mark.gpu

SPOILT = 7
"""The length of the sentences of the update that tests spoil: the fourth of every six."""


def column(run, name):
    return [record[name] for record in read_jsonl(run.metrics_path)]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_loss_falls_as_in_float32(train, precision):
    _, run = train(precision=precision, max_steps=60)
    losses = torch.tensor(column(run, "loss"))
    # all ids but the first follow from the one before
    assert losses[-6:].mean() < 0.5 * losses[:6].mean()
    if precision != "fp32":
        # fp16's scaler may skip the first updates, which the model then has not made
        steps = slice(0, 10) if precision == "bf16" else slice(0, 1)
        _, exact = train("exact", max_steps=10)
        torch.testing.assert_close(
            losses[steps], torch.tensor(column(exact, "loss"))[steps], rtol=0.02, atol=0.0
        )


def test_an_overflow_of_fp16_costs_one_update_and_half_of_the_scale(train):
    plain = token_loss(label_smoothing=0.0)

    def loss(model, batch):  # as a spike of the text would be: beyond 65504, the largest of fp16
        overflows = batch.source.shape[1] == SPOILT and model.training
        return plain(model, batch) * (1e9 if overflows else 1.0)

    model, run = train(precision="fp16", max_steps=24, loss=loss)
    skipped = column(run, "skipped_updates")
    assert skipped[3::6] == [1, 1, 1, 1]
    assert sum(skipped[6:]) == 3  # none but these, once the scale has settled
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    losses = [loss for index, loss in enumerate(column(run, "loss")) if index % 6 != 3]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("exact", [True, False], ids=["deterministic", "usual"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_three_updates_and_three_more_are_six(train, deterministic, precision, exact):
    deterministic(exact)
    given = {"precision": precision, "ema_decay": 0.9}
    straight, whole = train("whole", max_steps=6, **given)
    train("parts", max_steps=3, **given)
    resumed, parts = train("parts", max_steps=6, resume=True, **given)
    # usual kernels add up in any order: after three updates that is some hundreds of roundings
    error = 0.0 if exact else 1e-4 if precision == "fp32" else 2e-2
    assert column(parts, "loss") == pytest.approx(column(whole, "loss"), rel=error, abs=0.0)
    ours, theirs = (parameters_to_vector(model.parameters()) for model in (resumed, straight))
    assert (ours - theirs).norm() <= error * theirs.norm()


def test_recompute_draws_the_same_dropout_and_changes_nothing(train, deterministic):
    deterministic(True)
    _, plain = train("plain")
    _, again = train("again", recompute=True)
    assert column(again, "loss") == column(plain, "loss")
    assert column(again, "gradient_norm") == column(plain, "gradient_norm")


def test_the_guard_names_the_place_of_a_nan_by_computing_the_update_again(train, make_small):
    model = make_small()

    def spoil(branch, args, output):
        return output * torch.nan if args[0].shape[1] == SPOILT else output

    model.decoder.layers[1].sublayers["ffn"].branch.register_forward_hook(spoil)
    _, run = train(model=model, guard=GuardConfig(nan="skip"), max_steps=5)
    (incident,) = read_jsonl(run.incidents_path)
    assert (incident["step"], incident["kind"], incident["action"]) == (4, "nan", "skip")
    assert incident["where"] == "decoder.2.ffn"
    assert len(column(run, "loss")) == 5


def synchronisations(train, name, *, max_steps, **given):
    """Return how often the host waited for the device in a run that records and saves at its end alone."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            train(name, max_steps=max_steps, log_every=100, save_every=0, clip_norm=1.0, **given)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(warning.message) for warning in seen)


OFF = GuardConfig(spike="off", explosion="off", plateau="off", nan="off")


@pytest.mark.parametrize(("guard", "waits"), [(GuardConfig(), 12), (OFF, 0)], ids=["on", "off"])
def test_an_update_waits_for_the_device_once_for_its_guard_alone(train, device, guard, waits):
    if device.type != "cuda":
        pytest.skip("only CUDA computes while the host goes on, and tells when that waits")
    # both see the longest sentence, whose positions are made when it comes
    short, long = (
        synchronisations(train, f"{steps}", max_steps=steps, guard=guard) for steps in (6, 18)
    )
    assert long - short == waits
