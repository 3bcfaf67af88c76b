"""Each sign against numbers that were computed otherwise, and the units in which it is beyond its limit."""

import math

import pytest
import torch
from torch import nn

from deepnet.doctor.frequencies import frequency_loss
from deepnet.doctor.moments import measure_moments
from deepnet.doctor.risk import Weights, risk_of, shipped_weights, verdict_of
from deepnet.doctor.signs import read_signs
from deepnet.doctor.trial import Trial, layer_rows, smallest_share
from deepnet.probes.place import Place
from deepnet.training.cross_entropy import summed_cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_no_constant_prediction_has_a_smaller_loss_than_the_frequencies(smoothing):
    """Against the minimum that an optimiser finds, over the loss that training uses."""
    targets = [torch.tensor([[3, 1, 1, 5], [1, 0, 5, 5]]), torch.tensor([[2, 1, 5]])]  # 5: padding
    logits = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe")
    flat = torch.cat([target.flatten() for target in targets])[None]
    num_tokens = 7

    def loss():
        optimizer.zero_grad()
        rows = logits.expand(1, flat.numel(), 5)
        value = summed_cross_entropy(rows, flat, label_smoothing=smoothing) / num_tokens
        value.backward()
        return value

    optimizer.step(loss)
    found = frequency_loss(targets, num_ids=5, label_smoothing=smoothing)
    assert found == pytest.approx(loss().item(), abs=1e-4)


def test_the_layer_with_least_gradient_is_found_by_names_alone():
    model = nn.ModuleDict(
        {
            "front": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]),
            "layers": nn.ModuleList([nn.Linear(3, 3) for _ in range(3)]),
            "head": nn.Linear(3, 1),
        }
    )
    rows = layer_rows(model)
    names = [name for name, _ in model.named_parameters()]
    assert [[names[row] for row in layer] for layer in rows] == [
        [f"layers.{n}.weight", f"layers.{n}.bias"] for n in range(3)
    ]
    sizes = {"layers.0.weight": 3.0, "layers.0.bias": 4.0, "layers.1.weight": 0.1}
    sizes |= {"layers.2.weight": 10.0, "front.0.weight": 1e-9}
    gradients = torch.tensor([sizes.get(name, 0.0) for name in names])
    assert smallest_share(gradients, rows) == pytest.approx(0.1 / 10.0)
    assert smallest_share(torch.zeros(len(names)), rows) == 1.0
    assert smallest_share(gradients, []) == 1.0


def test_moments_are_the_root_mean_squares_of_stream_and_gradient(make_model, sentences):
    """Against autograd's gradients by the outputs of the layers."""
    model = make_model("pre_ln", encoder_layers=3, decoder_layers=2).eval()
    target = torch.randint(0, 29, (3, 4))

    def loss(module):
        return summed_cross_entropy(module(*sentences), target)

    found = measure_moments(model, loss)
    outputs = []
    hooks = [
        layer.register_forward_hook(lambda _, args, out: outputs.append(out))
        for layer in model.stacks()[0].layers
    ]
    value = loss(model)
    for hook in hooks:
        hook.remove()
    outputs = [out if isinstance(out, torch.Tensor) else out[0] for out in outputs]
    gradients = torch.autograd.grad(value, outputs)
    for layer, (out, gradient) in enumerate(zip(outputs, gradients, strict=True), start=1):
        place = Place("encoder", layer)
        assert found.forward[place] == pytest.approx(out.square().mean().sqrt().item())
        assert found.backward[place] == pytest.approx(gradient.square().mean().sqrt().item())
    forward, backward = found.growth("encoder")
    first, last = (found.forward[Place("encoder", n)] for n in (1, 3))
    assert forward == pytest.approx(last / first)
    assert backward == pytest.approx(
        found.backward[Place("encoder", 1)] / found.backward[Place("encoder", 3)]
    )


def reading(*, step_update=0.01, energy=1.0):
    return {
        "step_update": {"encoder": [9.0], "decoder": [5.0, step_update], "output": [7.0]},
        "token_mean_energy": {
            "encoder": [9e9],
            "decoder": [9e9, energy],
            "decoder.ffn": [9e9, 8e8],
        },
    }


def trial(losses, *, shares=(1.0,), readings=None, steps=None):
    return Trial(
        steps=len(losses) if steps is None else steps,
        losses=list(losses),
        layer_shares=list(shares),
        readings=[reading()] if readings is None else readings,
    )


def excess(name, found):
    return {sign.name: sign.excess for sign in found}[name]


FALLING = [8.0 - 0.03 * n for n in range(200)]


@pytest.mark.parametrize(
    ("above", "units"), [(-0.1, 0.0), (0.0, 1.0), (0.05, 1.5), (-0.3, -2.0), (-3.0, -3.0), (9, 3.0)]
)
def test_a_unit_of_loss_above_the_frequencies_is_a_tenth_of_a_nat(above, units):
    last = sum(FALLING[-20:]) / 20
    found = read_signs(trial(FALLING), frequency_loss=last - above)
    assert excess("above_frequencies", found) == pytest.approx(units)


def test_half_of_a_fall_that_is_lost_again_is_the_limit():
    losses = [8.0] * 10 + [4.0] * 80 + [6.0] * 10
    assert excess("loss_regained", read_signs(trial(losses))) == pytest.approx(0.0)
    losses = [8.0] * 10 + [4.0] * 80 + [7.0] * 10
    assert excess("loss_regained", read_signs(trial(losses))) == pytest.approx(1.0)


def test_a_loss_that_never_fell_is_at_the_limit_unless_frequencies_are_known():
    flat, risen = [4.0, 4.2] * 50, [4.0] * 10 + [7.0] * 90
    assert excess("loss_regained", read_signs(trial(flat))) == 0.0
    assert excess("loss_regained", read_signs(trial(flat), frequency_loss=9.0)) < -1.0
    for known in (None, 9.0):  # three quarters of where it began
        found = read_signs(trial(risen), frequency_loss=known)
        assert excess("loss_regained", found) == pytest.approx(1.0)


@pytest.mark.parametrize(("steps", "units"), [(100, 0.0), (200, 3.0)])
def test_what_a_short_trial_has_not_learnt_yet_is_at_the_limit_at_most(steps, units):
    found = read_signs(trial([8.0 - 0.001 * n for n in range(steps)]), frequency_loss=4.0)
    assert excess("above_frequencies", found) == pytest.approx(units)


def test_heads_and_classifiers_are_no_stack():
    layers, heads = (nn.ModuleList([nn.Linear(2, 2) for _ in range(n)]) for n in (6, 2))
    model = nn.ModuleDict({"layers": layers, "heads": heads})
    assert len(layer_rows(model)) == 6


@pytest.mark.parametrize(("share", "units"), [(1e-4, 0.0), (1e-5, 1.0), (1e-3, -1.0), (0.0, 3.0)])
def test_a_unit_of_a_layers_gradient_is_a_factor_of_ten_below_the_guards(share, units):
    found = read_signs(trial(FALLING, shares=[share, share, 1.0]))
    assert excess("layer_gradient", found) == pytest.approx(units)


@pytest.mark.parametrize(("change", "units"), [(1.0, 0.0), (2.0, 1.0), (None, 3.0), (0.0, -3.0)])
def test_a_unit_of_an_updates_change_is_a_factor_of_two(change, units):
    readings = [reading(step_update=0.1), reading(step_update=change), reading()]
    found = read_signs(trial(FALLING, readings=readings))
    assert excess("step_update", found) == pytest.approx(units)


@pytest.mark.parametrize(
    ("energy", "units"), [(256.0, 0.0), (2560.0, 1.0), (25.6, -1.0), (None, 3.0)]
)
def test_a_unit_of_collapse_is_a_factor_of_ten_at_the_end(energy, units):
    found = read_signs(trial(FALLING, readings=[reading(energy=1e9), reading(energy=energy)]))
    assert excess("token_mean_energy", found) == pytest.approx(units)


def test_a_trial_that_broke_off_says_so_and_nothing_of_its_losses():
    found = read_signs(trial([8.0, 7.0, math.nan], steps=100, readings=[]), frequency_loss=5.0)
    assert [sign.name for sign in found] == ["not_finite", "layer_gradient"]
    assert (found[0].value, found[0].excess) == (98, 3.0)


def test_the_shipped_risk_is_what_it_says_of_itself():
    calm = trial(FALLING, readings=[reading(energy=0.1)])
    assert risk_of(read_signs(calm), shipped_weights()) == pytest.approx(0.047, abs=5e-4)
    at_the_limit = trial(FALLING, readings=[reading(energy=256.0)])
    assert risk_of(read_signs(at_the_limit), shipped_weights()) == pytest.approx(0.5)
    beyond = trial(FALLING, readings=[reading(energy=2560.0)])
    assert risk_of(read_signs(beyond), shipped_weights()) == pytest.approx(0.953, abs=5e-4)
    assert verdict_of(0.05) == "trains"
    assert verdict_of(0.5) == "at risk"
    assert verdict_of(0.95) == "diverges"


def test_no_good_sign_makes_up_for_a_bad_one():
    bad = trial(FALLING, readings=[reading(step_update=1e-9, energy=1e5)])
    worse = trial(FALLING, readings=[reading(step_update=0.9, energy=1e5)])
    names = dict.fromkeys(shipped_weights().signs, 1.0)
    weights = Weights(bias=-2.0, signs=names, how="")
    risks = [risk_of(read_signs(one), weights) for one in (bad, worse)]
    assert 0.7 < risks[0] < risks[1]
